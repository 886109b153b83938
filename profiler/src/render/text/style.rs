//! ANSI colours, where they are asked for.

use super::TextOptions;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::render) enum Style {
    Plain,
    Heading,
    Critical,
    Warning,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::render) struct Painter {
    colour: bool,
}

impl Painter {
    pub(in crate::render) fn new(options: TextOptions) -> Painter {
        Painter { colour: options.colour }
    }

    pub(in crate::render) fn paint(self, style: Style, text: &str) -> String {
        let code = match style {
            Style::Plain => return text.to_owned(),
            Style::Heading => "1",
            Style::Critical => "1;31",
            Style::Warning => "1;33",
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
