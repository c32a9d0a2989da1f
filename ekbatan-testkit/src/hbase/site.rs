//! The files with the settings of a server.

use std::fmt::Write;

/// Everything that the server says goes to its standard error.
pub(super) const LOGGING: &str = "\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %-5p [%t] %c{2}: %m%n
";

/// The settings, of which the last one of a name counts.
pub(super) fn xml<'a>(settings: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::from("<configuration>\n");
    for (name, value) in settings {
        let (name, value) = (escaped(name), escaped(value));
        // Writing to a text cannot fail.
        let _ = writeln!(text, "<property><name>{name}</name><value>{value}</value></property>");
    }
    text.push_str("</configuration>\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped() {
        let text = xml([("a", "b<c&d")].into_iter());
        assert!(text.contains("<value>b&lt;c&amp;d</value>"), "{text}");
    }
}
