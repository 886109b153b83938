//! A table as data, for text and HTML alike.

use super::unit::count;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub title: &'static str,
    pub align: Align,
    /// Names, which can be cut where the page is too narrow; figures cannot.
    pub is_name: bool,
    /// Only where there is room: not in text of 100 columns.
    pub is_extra: bool,
}

impl Column {
    pub(super) const fn name(title: &'static str) -> Column {
        Column { title, align: Align::Left, is_name: true, is_extra: false }
    }

    pub(super) const fn figure(title: &'static str) -> Column {
        Column { title, align: Align::Right, is_name: false, is_extra: false }
    }

    pub(super) const fn extra(self) -> Column {
        Column { is_extra: true, ..self }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    pub title: &'static str,
    pub columns: Vec<Column>,
    /// Cells without control characters, as many a row as there are columns.
    pub rows: Vec<Vec<String>>,
    /// What is said below each row; empty, or fewer, where there is nothing to say.
    pub notes: Vec<String>,
    /// Rows that the table leaves out.
    pub left_out: usize,
    /// What is in them, where that adds up to something: `1.20 s stalled`.
    pub left_out_sum: Option<String>,
    /// Said below the table.
    pub remark: Option<&'static str>,
}

impl Table {
    /// The first `most` of `items`, each made a row by `row`.
    pub(super) fn of<T>(
        title: &'static str,
        columns: Vec<Column>,
        items: &[T],
        most: usize,
        row: impl Fn(&T) -> Vec<String>,
    ) -> Table {
        let rows = items.iter().take(most).map(row).collect();
        let left_out = items.len().saturating_sub(most);
        Table { title, columns, rows, notes: Vec::new(), left_out, left_out_sum: None, remark: None }
    }

    /// `and 12 more, 1.20 s stalled`, where rows are left out.
    pub(super) fn rest(&self) -> Option<String> {
        let sum = self.left_out_sum.as_ref().map_or_else(String::new, |sum| format!(", {sum}"));
        (self.left_out > 0).then(|| format!("and {} more{sum}", count(self.left_out as u64)))
    }
}
