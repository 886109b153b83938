//! Domain names as text.

use hickory_proto::rr::Name;

/// The name in the presentation form of RFC 1035 5.1 (and RFC 4343 2.1), without the dot at its end: what
/// is no printable ASCII becomes `\DDD` (decimal), dots and backslashes inside a label get a backslash.
/// So nothing that a packet holds can steer a terminal. The root is `.`.
pub fn present(name: &Name) -> String {
    let mut text = String::with_capacity(name.len());
    for label in name {
        if !text.is_empty() {
            text.push('.');
        }
        for byte in label {
            present_byte(*byte, &mut text);
        }
    }
    if text.is_empty() {
        text.push('.');
    }
    text
}

fn present_byte(byte: u8, text: &mut String) {
    match byte {
        b'.' | b'\\' | b'"' | b';' => {
            text.push('\\');
            text.push(char::from(byte));
        }
        0x21..=0x7e => text.push(char::from(byte)),
        _ => {
            text.push_str(&format!("\\{byte:03}"));
        }
    }
}

/// Text of unknown origin (an argument that was read from the target) with control characters escaped and
/// cut to what a domain name can be long.
pub fn present_text(text: &str) -> String {
    const LONGEST: usize = 255;
    let mut shown = String::with_capacity(text.len().min(LONGEST));
    for character in text.chars().take(LONGEST) {
        if character.is_control() || is_format(character) {
            shown.push_str(&format!("\\u{{{:x}}}", u32::from(character)));
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Characters without a shape that turn around or join the text beside them.
fn is_format(character: char) -> bool {
    matches!(u32::from(character), 0xad | 0x061c | 0x180e | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x2069 | 0xfeff)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(labels: &[&[u8]]) -> Name {
        Name::from_labels(labels.iter().copied()).unwrap()
    }

    #[test]
    fn ordinary_names_have_no_dot_at_the_end() {
        assert_eq!(present(&name(&[b"node01", b"example"])), "node01.example");
        assert_eq!(present(&Name::root()), ".");
    }

    #[test]
    fn control_characters_and_dots_in_labels_are_escaped() {
        assert_eq!(present(&name(&[b"a.b\\", b"\x1b[31m", b"\xff\x00"])), "a\\.b\\\\.\\027[31m.\\255\\000");
    }

    #[test]
    fn control_and_direction_characters_of_an_argument_are_escaped() {
        assert_eq!(present_text("a\x1b[0m\u{202e}b\u{9b}"), "a\\u{1b}[0m\\u{202e}b\\u{9b}");
        assert_eq!(present_text(&"x".repeat(9000)).len(), 255);
    }
}
