//! What a private server is configured with before it starts.
//!
//! What always holds: a setting that a test asks for wins over the defaults, and
//! the few that make a server private (its address, port and socket) win over
//! both. Every server takes the last of several values for one parameter, so
//! what must hold comes last.

/// Parameters and their values, in the order in which they were chosen.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    chosen: Vec<(String, String)>,
}

impl Settings {
    pub(crate) fn new(defaults: &[(&str, &str)]) -> Self {
        let mut settings = Self { chosen: Vec::new() };
        settings.extend(defaults);
        settings
    }

    pub(crate) fn push(&mut self, name: String, value: String) {
        self.chosen.push((name, value));
    }

    pub(crate) fn extend(&mut self, more: &[(&str, &str)]) {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        self.chosen.extend(more.iter().map(owned));
    }

    /// Every name and value, and then those of `private`.
    pub(crate) fn with<'a>(
        &'a self,
        private: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let chosen = self.chosen.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        chosen.chain(private.iter().copied())
    }
}
