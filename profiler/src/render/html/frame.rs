//! The flame graph as a frame inside of the page.

use std::io::Write;

use crate::analysis::Analysis;
use crate::render::RenderError;
use crate::render::flame::write_svg;
use crate::render::name::html;
use crate::render::tree::FlameOptions;

/// Height where the picture does not tell its own, in pixels.
const HEIGHT: u32 = 600;

/// In the dark the page around the frames is dark too; the frames keep their pale colours and black text.
const STYLE: &str = "body{margin:0;background:#fff}\
    body>svg{display:block;width:100%}\
    @media(prefers-color-scheme:dark){body,svg{background:#15181d}\
    svg>rect{fill:#15181d}\
    svg>text,#title,#subtitle,#details,#matched,#search,#unzoom{fill:#d8dce2}}";

pub(super) fn write_flame(
    analysis: &Analysis,
    options: &FlameOptions,
    out: &mut dyn Write,
) -> Result<(), RenderError> {
    let mut picture = Vec::new();
    write_svg(analysis, options, &mut picture)?;
    write_picture(&String::from_utf8_lossy(&picture), &format!("flame graph by {}", options.view), out)
}

/// A picture as a frame; `title` is for those who do not see it.
pub(in crate::render) fn write_picture(
    picture: &str,
    title: &str,
    out: &mut dyn Write,
) -> Result<(), RenderError> {
    // Without the XML declaration and document type, which HTML does not have.
    let picture = picture.find("<svg").and_then(|at| picture.get(at..)).unwrap_or_default();
    let document = format!("<!DOCTYPE html><meta charset=utf-8><style>{STYLE}</style>{picture}");
    let source = document.replace('&', "&amp;").replace('"', "&quot;");
    writeln!(
        out,
        "<iframe sandbox=\"allow-scripts allow-modals\" title=\"{}\" height=\"{}\" srcdoc=\"{source}\"></iframe>",
        html(title),
        height(picture).saturating_add(8)
    )?;
    Ok(())
}

/// The picture's height in pixels, from its first tag.
fn height(picture: &str) -> u32 {
    let tag = picture.split('>').next().unwrap_or_default();
    let value = tag.split(" height=\"").nth(1).and_then(|rest| rest.split('"').next());
    value.and_then(|digits| digits.parse().ok()).unwrap_or(HEIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_is_as_high_as_the_picture() {
        assert_eq!(
            height("<svg version=\"1.1\" width=\"1200\" height=\"262\" onload=\"x\"><g height=\"1\">"),
            262
        );
        assert_eq!(height("<svg>"), HEIGHT);
        assert_eq!(height(""), HEIGHT);
    }
}
