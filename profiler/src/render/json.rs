//! The report as one JSON document, schema `stallscope.report/1`.

use std::io::{self, Write};

use super::name::is_unsafe;
use crate::analysis::report::Report;

/// Writes the report, indented, with a line end behind it.
pub fn write_json(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(Escaping(&mut *out), report)?;
    out.write_all(b"\n")
}

/// JSON on its way out. JSON itself lets control characters above U+007E and those that turn text around
/// stand as they are, and a terminal obeys them: here they are written `\u009b`.
///
/// Such characters occur in strings alone, so the document stays the same.
pub struct Escaping<W>(pub W);

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // serde_json writes whole pieces of text.
        let text = match std::str::from_utf8(bytes) {
            Ok(text) if !bytes.is_ascii() || bytes.contains(&0x7f) => text,
            _ => return self.0.write_all(bytes).map(|()| bytes.len()),
        };
        let mut rest = text;
        while let Some((at, found)) = rest.char_indices().find(|(_, c)| *c >= '\u{7f}' && is_unsafe(*c)) {
            self.0.write_all(rest.get(..at).unwrap_or_default().as_bytes())?;
            for unit in found.encode_utf16(&mut [0; 2]) {
                write!(self.0, "\\u{unit:04x}")?;
            }
            rest = rest.get(at + found.len_utf8()..).unwrap_or_default();
        }
        self.0.write_all(rest.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_stays_the_same_text() {
        let text = "a\u{9b}31m\u{202e}\u{7f}\u{1b}é\u{feff}";
        let mut out = Vec::new();
        serde_json::to_writer(Escaping(&mut out), text).unwrap();
        let json = String::from_utf8(out).unwrap();
        assert!(json.starts_with(r#""a\u009b31m\u202e\u007f\u001bé"#), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
