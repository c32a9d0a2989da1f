//! A copy of the checkout, in which defects are made. The checkout itself is never written to.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes `copy` equal to the checkout, with changes that are not committed.
///
/// A file that is equal already keeps its time, so that cargo builds only what has changed.
///
/// # Errors
///
/// If git cannot list the files, or a file cannot be copied.
pub fn refresh(checkout: &Path, copy: &Path) -> io::Result<()> {
    let files = listed(checkout)?;
    for file in &files {
        let (from, to) = (checkout.join(file), copy.join(file));
        if fs::read(&to).ok().as_deref() == Some(&fs::read(&from)?) {
            continue;
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::copy(&from, &to)?;
    }
    remove_others(copy, copy, &files)
}

/// The files that git tracks or would track.
fn listed(checkout: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(checkout)
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let names = String::from_utf8_lossy(&output.stdout);
    let files = names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    // A file that was deleted and not yet committed is still listed.
    Ok(files.filter(|file| checkout.join(file).is_file()).collect())
}

fn remove_others(copy: &Path, folder: &Path, files: &BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(copy, &path, files)?;
        } else if path.strip_prefix(copy).is_ok_and(|file| !files.contains(file)) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
