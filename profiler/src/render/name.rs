//! Makes names from the recorded machine fit for a terminal, a folded line, XML and HTML.
//!
//! A thread can call itself `;`, an escape sequence or `<script>`; a DNS name can hold any byte.

/// Longest name in a folded line or a table, in characters; C++ templates run to kilobytes.
const LONGEST: usize = 300;

/// Whether a character could steer a terminal, break a line or turn the direction of the text behind it,
/// or may not stand in XML at all.
pub(super) fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// The text with control and direction characters written as `\n`, `\u{1b}`.
pub fn escape_controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// One field of a folded line: never empty, no `;`, no space at either end, nothing that a reader takes for
/// a comment.
pub fn frame(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b';' && byte != b'#';
    // Nearly all names: nothing to do, at most spaces inside.
    if (1..=LONGEST).contains(&name.len())
        && name.bytes().all(|byte| plain(byte) || byte == b' ')
        && !name.starts_with(' ')
        && !name.ends_with(' ')
    {
        return name.to_owned();
    }
    let mut out = String::with_capacity(name.len());
    for (count, c) in name.trim().chars().enumerate() {
        if count == LONGEST {
            out.push_str("..");
            break;
        }
        match c {
            ';' => out.push(':'),
            c if is_unsafe(c) => out.extend(c.escape_default()),
            c if c.is_whitespace() => out.push(' '),
            c => out.push(c),
        }
    }
    // Readers of folded stacks skip lines that begin with `# `.
    while out.starts_with("# ") {
        out.remove(1);
    }
    if out.is_empty() { "[unknown]".to_owned() } else { out }
}

/// A [`frame`] as the last field of a folded line: no number of its own stands before the weight, where it
/// would read as the first column of a differential profile.
pub fn leaf(name: String) -> String {
    match name.rsplit_once(' ') {
        Some((head, tail)) if tail.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') => {
            format!("{head}_{tail}")
        }
        _ => name,
    }
}

/// Text between HTML tags or in a quoted attribute.
pub fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if is_unsafe(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// The text in at most `width` characters; what is cut is cut from the middle, since the ends (a host and
/// its port, a name and its domain) tell more.
pub fn shorten(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(2);
    let head = kept.div_ceil(2);
    let tail = kept - head;
    let mut out: String = text.chars().take(head).collect();
    out.extend("..".chars().take(width));
    out.extend(text.chars().skip(length - tail));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(escape_controls("a\x1b[31mb\n"), "a\\u{1b}[31mb\\n");
        assert_eq!(escape_controls("x\u{202e}y\u{9b}"), "x\\u{202e}y\\u{9b}");
        assert_eq!(escape_controls("größe"), "größe");
    }

    #[test]
    fn a_frame_is_one_field_of_a_folded_line() {
        assert_eq!(frame("a;b\nc"), "a:b\\nc");
        assert_eq!(frame("  spaced\u{a0}out\t"), "spaced out");
        assert_eq!(frame(""), "[unknown]");
        assert_eq!(frame(" \t"), "[unknown]");
        assert_eq!(frame("# comment"), "#comment");
        assert_eq!(frame("#  comment"), "#comment");
        assert_eq!(frame("bad\u{ffff}"), "bad\\u{ffff}");
    }

    #[test]
    fn a_frame_has_a_bounded_length() {
        let long = frame(&"x".repeat(100_000));
        assert_eq!(long.chars().count(), LONGEST + 2);
        assert!(long.ends_with("x.."));
    }

    #[test]
    fn a_leaf_that_ends_in_a_number_is_not_taken_for_a_weight() {
        assert_eq!(leaf("worker 3".to_owned()), "worker_3");
        assert_eq!(leaf("[dns.resolve] 127.0.0.53:53 12.5".to_owned()), "[dns.resolve] 127.0.0.53:53_12.5");
        assert_eq!(leaf("[tcp.connect] 10.0.0.9:29500".to_owned()), "[tcp.connect] 10.0.0.9:29500");
        assert_eq!(leaf("1234".to_owned()), "1234");
    }

    #[test]
    fn markup_is_escaped() {
        assert_eq!(html("<script>'\"&\x00"), "&lt;script&gt;&#39;&quot;&amp;\\u{0}");
    }

    #[test]
    fn shortening_keeps_both_ends() {
        assert_eq!(shorten("abcdef", 6), "abcdef");
        assert_eq!(shorten("abcdefgh", 6), "ab..gh");
        assert_eq!(shorten("abcdefghi", 7), "abc..hi");
        assert_eq!(shorten("abc", 1), ".");
        assert_eq!(shorten("abc", 0), "");
    }

    proptest::proptest! {
        #[test]
        fn any_name_is_one_clean_field(name in "\\PC*|(?s).{0,400}") {
            let clean = leaf(frame(&name));
            proptest::prop_assert!(!clean.is_empty() && clean == clean.trim());
            proptest::prop_assert!(!clean.contains(';') && !clean.starts_with("# "));
            proptest::prop_assert!(!clean.chars().any(is_unsafe));
            let last = clean.rsplit_once(' ').map_or("x", |(_, last)| last);
            proptest::prop_assert!(!last.chars().all(|c| c.is_ascii_digit() || c == '.'));
        }
    }
}
