//! Comparing whole outputs with files under `tests/data`; `STALLSCOPE_BLESS=1` writes them anew.

use std::fs;
use std::path::PathBuf;

/// `name` is the file's path below `tests/data`.
pub fn assert_same(name: &str, actual: &[u8]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    if std::env::var_os("STALLSCOPE_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, actual).unwrap();
        return;
    }
    let expected = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if expected == actual {
        return;
    }
    let (expected, actual) = (String::from_utf8_lossy(&expected), String::from_utf8_lossy(actual));
    let differs = expected.lines().zip(actual.lines()).position(|(expected, actual)| expected != actual);
    let line = differs.unwrap_or_else(|| expected.lines().count().min(actual.lines().count()));
    let (expected, actual) = (expected.lines().nth(line), actual.lines().nth(line));
    let (expected, actual) = (expected.unwrap_or("(end)"), actual.unwrap_or("(end)"));
    let same =
        expected.chars().zip(actual.chars()).take_while(|(expected, actual)| expected == actual).count();
    panic!(
        "{name} differs in line {}, column {}\nexpected: {}\nactual:   {}",
        line + 1,
        same + 1,
        excerpt(expected, same),
        excerpt(actual, same)
    );
}

/// What surrounds a place of a line: flame graphs have lines of a hundred thousand characters.
fn excerpt(line: &str, column: usize) -> String {
    line.chars().skip(column.saturating_sub(80)).take(200).collect()
}
