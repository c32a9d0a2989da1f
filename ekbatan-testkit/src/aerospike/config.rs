//! The file with the configuration of a server.
//!
//! Each brace stands at the end of its line: the server accepts no section on one line.

use std::path::Path;

use crate::server::{Settings, free_port};

/// What begins like this belongs to the storage of the namespace.
const OF_STORAGE: &str = "storage.";

pub(super) fn text(namespace: &str, data: &Path, port: u16, settings: &Settings) -> String {
    let data = data.display();
    // Nobody else connects to them. A port that is taken by the start ends the server, and the next
    // start has others.
    let [heartbeat, fabric] = [(); 2].map(|()| free_port().unwrap_or_default());
    let all: Vec<(&str, &str)> = settings.with(&[]).collect();
    let lines = |of_storage: bool| {
        let mut lines = String::new();
        for (at, (name, value)) in all.iter().enumerate() {
            let short = name.strip_prefix(OF_STORAGE);
            // The server accepts each name once.
            let is_last = !all[at + 1..].iter().any(|(other, _)| other == name);
            if short.is_some() == of_storage && is_last {
                let name = short.unwrap_or(name);
                lines.push_str(&format!("    {name} {value}\n"));
            }
        }
        lines
    };
    format!(
        "service {{
    cluster-name ekbatan
    work-directory {data}
    pidfile {data}/pid
    proto-fd-max 1024
}}
logging {{
    console {{
        context any warning
    }}
}}
network {{
    service {{
        address 127.0.0.1
        access-address 127.0.0.1
        port {port}
    }}
    heartbeat {{
        mode mesh
        address 127.0.0.1
        port {heartbeat}
        interval 150
        timeout 10
    }}
    fabric {{
        address 127.0.0.1
        port {fabric}
    }}
}}
mod-lua {{
    user-path {data}/lua
}}
namespace {namespace} {{
{of_namespace}    storage-engine memory {{
        data-size 1G
{storage}    }}
}}
",
        of_namespace = lines(false),
        storage = lines(true),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_setting_wins_and_stands_in_its_section() {
        let mut settings = Settings::new(&[("nsup-period", "1")]);
        settings.push("nsup-period".to_owned(), "0".to_owned());
        settings.push("storage.evict-used-pct".to_owned(), "50".to_owned());
        let text = text("test", Path::new("/data"), 3000, &settings);
        assert_eq!(text.matches("nsup-period").count(), 1);
        assert!(text.contains("nsup-period 0\n"), "{text}");
        let (_, storage) = text.split_once("storage-engine memory {").unwrap();
        assert!(storage.contains("evict-used-pct 50\n"), "{text}");
    }
}
