//! Tables and paragraphs in a page of fixed width. A character counts as one column.

use std::io::{self, Write};

use super::WIDTH;
use crate::render::name::shorten;
use crate::render::table::{Align, Column, Table};

/// Least width of a column that is cut.
const NARROWEST: usize = 8;
/// Before the first column, and between two.
const INDENT: usize = 2;

pub(in crate::render) fn write_table(table: &Table, out: &mut dyn Write) -> io::Result<()> {
    let shown: Vec<usize> = (0..table.columns.len()).filter(|at| !table.columns[*at].is_extra).collect();
    let columns: Vec<Column> = shown.iter().map(|at| table.columns[*at]).collect();
    let rows: Vec<Vec<&str>> = table
        .rows
        .iter()
        .map(|row| shown.iter().map(|at| row.get(*at).map_or("", String::as_str)).collect())
        .collect();
    let widths = fit(&columns, &rows);
    let titles: Vec<String> = columns.iter().map(|column| column.title.to_uppercase()).collect();
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    write_row(&columns, &widths, &titles, out)?;
    for (number, row) in rows.iter().enumerate() {
        write_row(&columns, &widths, row, out)?;
        let note = table.notes.get(number).filter(|note| !note.is_empty());
        for line in note.map_or_else(Vec::new, |note| wrap(note, WIDTH - 6)) {
            writeln!(out, "      {line}")?;
        }
    }
    if let Some(rest) = table.rest() {
        writeln!(out, "  {rest}")?;
    }
    if let Some(remark) = table.remark {
        writeln!(out, "  {remark}")?;
    }
    Ok(())
}

/// Widths of the columns: as wide as their cells, the widest names cut until a row fits the page.
fn fit(columns: &[Column], rows: &[Vec<&str>]) -> Vec<usize> {
    let mut widths: Vec<usize> = columns.iter().map(|column| column.title.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count().min(WIDTH));
        }
    }
    let mut excess = (widths.iter().sum::<usize>() + INDENT * columns.len()).saturating_sub(WIDTH);
    while excess > 0 {
        let names = widths.iter_mut().zip(columns).filter(|(_, column)| column.is_name);
        let Some((widest, _)) = names.max_by_key(|(width, _)| **width) else { break };
        if *widest <= NARROWEST {
            break;
        }
        *widest -= 1;
        excess -= 1;
    }
    widths
}

fn write_row(columns: &[Column], widths: &[usize], cells: &[&str], out: &mut dyn Write) -> io::Result<()> {
    let mut line = String::new();
    for ((column, width), cell) in columns.iter().zip(widths).zip(cells) {
        let cell = shorten(cell, (*width).max(if column.is_name { 0 } else { cell.len() }));
        line.push_str("  ");
        let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
        match column.align {
            Align::Left => line.extend([cell, padding]),
            Align::Right => line.extend([padding, cell]),
        }
    }
    writeln!(out, "{}", line.trim_end())
}

/// Words on the left, texts beside them, wrapped.
pub(super) fn write_pairs<K: AsRef<str>>(pairs: &[(K, String)], out: &mut dyn Write) -> io::Result<()> {
    let longest = pairs.iter().map(|(key, _)| key.as_ref().chars().count()).max().unwrap_or_default();
    let width = longest.min(30);
    for (key, text) in pairs {
        let key = shorten(key.as_ref(), width);
        for (index, line) in wrap(text, WIDTH - width - 2 * INDENT).iter().enumerate() {
            let key = if index == 0 { key.as_str() } else { "" };
            writeln!(out, "{}", format!("  {key:<width$}  {line}").trim_end())?;
        }
    }
    Ok(())
}

/// The text in lines of at most `width` characters, broken at spaces; a longer word gets a line of its own.
/// At least one line.
pub(in crate::render) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += length;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: Vec<Column>, rows: &[&[&str]]) -> String {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect();
        let mut out = Vec::new();
        let notes = Vec::new();
        let table = Table { title: "T", columns, rows, notes, left_out: 3, left_out_sum: None, remark: None };
        write_table(&table, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_aligned_and_extra_ones_left_out() {
        let columns = vec![Column::name("peer"), Column::figure("x").extra(), Column::figure("time")];
        assert_eq!(
            table(columns, &[&["10.0.0.9", "7", "1.23 s"], &["a", "8", "9 ns"]]),
            "  PEER        TIME\n  10.0.0.9  1.23 s\n  a           9 ns\n  and 3 more\n"
        );
    }

    #[test]
    fn a_row_that_is_too_long_loses_letters_of_names_never_of_figures() {
        let long = "n".repeat(500);
        let columns = vec![Column::name("a"), Column::figure("b"), Column::name("c")];
        let text = table(columns, &[&[&long, "123456789012", "short"]]);
        let row = text.lines().nth(1).unwrap();
        assert_eq!(row.chars().count(), WIDTH);
        assert!(row.contains("n..n") && row.contains(" 123456789012 ") && row.ends_with("short"), "{row}");
    }

    #[test]
    fn text_is_broken_at_spaces() {
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrap("aa bbbbbbbb cc", 5), ["aa", "bbbbbbbb", "cc"]);
        assert_eq!(wrap("", 5), [""]);
    }
}
