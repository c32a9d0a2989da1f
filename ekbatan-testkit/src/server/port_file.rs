//! Finding the folder of a server that does not tell it: a file in the folder has its port as its name.
//!
//! Invariant: a server that finds its port taken ends. So who answers at a port is the server whose
//! folder has the file, if its process is there.

use std::path::{Path, PathBuf};

/// The file that says which port the server in a folder has.
pub(crate) fn port_file(folder: &Path, port: u16) -> PathBuf {
    folder.join(format!("port-{port}"))
}

/// The data folder of the private server of this kind at a port.
pub(crate) fn data_at(kind: &str, port: u16) -> Option<PathBuf> {
    let begin = format!("ekbatan-{kind}-");
    let folders = std::fs::read_dir(std::env::temp_dir()).ok()?.flatten();
    let mut folders = folders
        .filter(|folder| folder.file_name().to_str().is_some_and(|name| name.starts_with(&begin)));
    let found = folders.find(|folder| port_file(&folder.path(), port).exists())?;
    Some(std::fs::canonicalize(found.path()).ok()?.join("data"))
}
