//! The last check before a write, which no known shape of file gets to: so it is given a wrong edit directly.

use super::*;

#[test]
fn an_edit_that_changes_more_than_it_should_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    std::fs::write(&file, "# Mine.\n").unwrap();
    let target = write::Target::locked(&file).unwrap();
    let new_text = "[daemon]\nlog_level = \"off\"\n";
    let new = parse(new_text).unwrap();
    let error = commit(&target, new_text, &new, &Config::default()).unwrap_err();
    assert!(matches!(error, EditError::Shape { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "# Mine.\n");
    commit(&target, new_text, &new, &new).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), new_text);
}
