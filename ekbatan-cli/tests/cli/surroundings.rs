//! The program in a shell: files that are not there.

use crate::scene;

#[tokio::test]
async fn a_file_that_does_not_exist_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    for url in ["sqlite:typo.db", "sqlite:typo.db?mode=rwc", "sqlite:typo.db?mode=rw"] {
        let said = scene::run(&["--database", url, "events", "status"], folder.path()).await;
        let said = said.failed(1);
        assert!(said.contains("sqlite:typo.db cannot be opened"), "{said}");
        assert!(said.contains("does the file exist"), "{said}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{url}");
    }
}
