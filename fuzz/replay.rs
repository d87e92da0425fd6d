//! Runs the body of a fuzz target over its committed corpus, in an ordinary test.

use std::path::Path;

/// Panics where `body` does, after it has said which file was to blame, and if there are no files.
pub(crate) fn replay(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("fuzz/corpus").join(target))
        .find(|folder| folder.is_dir())
        .unwrap_or_else(|| panic!("no folder fuzz/corpus/{target}"));
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let data = std::fs::read(&path).unwrap();
        eprintln!("replaying {}", path.display());
        body(&data);
        files += 1;
    }
    assert!(files > 0, "fuzz/corpus/{target} is empty");
}
