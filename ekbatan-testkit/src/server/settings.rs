//! The settings of a private server.
//!
//! Invariants: a test's settings override the defaults, and the settings that keep a
//! server private (address, port, socket) override both. Servers use the last value of a
//! parameter, so the settings that must win come last.

/// Parameters and values, in the order in which they were set.
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

    pub(crate) fn has(&self, name: &str) -> bool {
        self.chosen.iter().any(|(chosen, _)| chosen == name)
    }

    /// All names and values, followed by those in `private`.
    pub(crate) fn with<'a>(
        &'a self,
        private: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let chosen = self.chosen.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        chosen.chain(private.iter().copied())
    }
}
