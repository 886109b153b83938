//! Folded stacks: `frame;frame;…;leaf nanoseconds`, one line a stack, sorted.

use std::io::{self, Write};

use crate::analysis::Analysis;
use crate::render::RenderError;
use crate::render::tree::{FlameOptions, fold_tree};

/// The lines, sorted bytewise, without line ends. Equal stacks are one line.
pub fn fold_lines(analysis: &Analysis, options: &FlameOptions) -> Result<Vec<String>, RenderError> {
    let mut lines: Vec<String> = fold_tree(analysis, options)?.lines().collect();
    lines.sort_unstable();
    Ok(lines)
}

/// Writes the folded stacks that `options` select; nothing where nothing stalled.
///
/// An unknown rank or thread is an `InvalidInput` error around a [`RenderError`].
pub fn write_folded(analysis: &Analysis, options: &FlameOptions, out: &mut dyn Write) -> io::Result<()> {
    for line in fold_lines(analysis, options)? {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
