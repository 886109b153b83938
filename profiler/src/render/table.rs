//! A table as data, for text and HTML alike.

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
    /// Rows that the table leaves out.
    pub left_out: usize,
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
        Table { title, columns, rows, left_out: items.len().saturating_sub(most), remark: None }
    }
}
