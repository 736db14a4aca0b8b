//! The raw form: a cursor over the parsed document that knows the path and the place of everything it hands out,
//! and reports what has the wrong type or an unknown name.

use std::fmt::Write as _;

use toml_edit::{Array, Item, TableLike, Value};

use crate::problem::Problems;

/// A table of the document.
pub(crate) struct Section<'d> {
    table: &'d dyn TableLike,
    pub(crate) path: String,
    /// Byte offset of the key that opens it.
    pub(crate) at: usize,
}

/// One value of an array, or a value by itself.
pub(crate) struct Element<'d> {
    pub(crate) value: &'d Value,
    path: String,
    at: usize,
}

/// A key of the document with its value.
pub(crate) struct Entry<'d> {
    pub(crate) key: &'d str,
    pub(crate) item: &'d Item,
    pub(crate) path: String,
    /// Byte offset of the key.
    pub(crate) at: usize,
}

impl<'d> Section<'d> {
    pub(crate) fn root(table: &'d dyn TableLike) -> Self {
        Self { table, path: String::new(), at: 0 }
    }

    fn entry(&self, key: &'d str, item: &'d Item) -> Entry<'d> {
        let span = self.table.key(key).and_then(toml_edit::Key::span);
        let at = span.map_or(self.at, |span| span.start);
        Entry { key, item, path: joined(&self.path, key), at }
    }

    pub(crate) fn get(&self, key: &'d str) -> Option<Entry<'d>> {
        let item = self.table.get(key)?;
        (!item.is_none()).then(|| self.entry(key, item))
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'d>> + '_ {
        self.table.iter().map(|(key, item)| self.entry(key, item))
    }

    /// Reports every key that is not in `known`, with the nearest one that is.
    pub(crate) fn refuse_unknown(&self, known: &[&str], problems: &mut Problems<'_>) {
        for entry in self.entries().filter(|entry| !known.contains(&entry.key)) {
            let message = format!("unknown key `{}`", shown(entry.key));
            problems.push(entry.at, &entry.path, message, nearest_hint(entry.key, known));
        }
    }
}

impl<'d> Entry<'d> {
    pub(crate) fn problem(
        &self,
        problems: &mut Problems<'_>,
        message: impl Into<String>,
        hint: Option<&str>,
    ) {
        problems.push(self.at, &self.path, message, hint.map(str::to_owned));
    }

    /// The type alone is named: the value may be a secret that was put into the wrong place.
    fn wrong_type(&self, wanted: &str, problems: &mut Problems<'_>) {
        let found = match self.item {
            Item::None => "nothing",
            Item::ArrayOfTables(_) => "an array of tables",
            Item::Table(_) => "a table",
            Item::Value(value) => type_of(value),
        };
        self.problem(problems, format!("expected {wanted}, found {found}"), None);
    }

    pub(crate) fn string(&self, wanted: &str, problems: &mut Problems<'_>) -> Option<&'d str> {
        let text = self.item.as_str();
        if text.is_none() {
            self.wrong_type(wanted, problems);
        }
        text
    }

    pub(crate) fn boolean(&self, problems: &mut Problems<'_>) -> Option<bool> {
        let value = self.item.as_bool();
        if value.is_none() {
            self.wrong_type("`true` or `false`", problems);
        }
        value
    }

    pub(crate) fn integer(&self, wanted: &str, problems: &mut Problems<'_>) -> Option<i64> {
        let value = self.item.as_integer();
        if value.is_none() {
            self.wrong_type(wanted, problems);
        }
        value
    }

    pub(crate) fn strings(&self, wanted: &str, problems: &mut Problems<'_>) -> Option<Vec<String>> {
        let words: Option<Vec<String>> = self
            .item
            .as_array()
            .and_then(|array| array.iter().map(|value| value.as_str().map(str::to_owned)).collect());
        if words.is_none() {
            self.problem(problems, format!("expected {wanted}"), None);
        }
        words
    }

    pub(crate) fn section(&self, wanted: &str, problems: &mut Problems<'_>) -> Option<Section<'d>> {
        let table = self.item.as_table_like();
        if table.is_none() {
            self.wrong_type(wanted, problems);
        }
        table.map(|table| Section { table, path: self.path.clone(), at: self.at })
    }

    /// The tables of an array of tables, in either way of writing one.
    pub(crate) fn sections(&self, wanted: &str, problems: &mut Problems<'_>) -> Vec<Section<'d>> {
        match self.item {
            Item::ArrayOfTables(tables) => {
                let section = |(index, table): (usize, &'d toml_edit::Table)| {
                    let at = table.span().map_or(self.at, |span| span.start);
                    Section { table, path: format!("{}[{index}]", self.path), at }
                };
                tables.iter().enumerate().map(section).collect()
            }
            Item::Value(Value::Array(array)) => {
                self.elements(array).filter_map(|element| element.section(problems)).collect()
            }
            _ => {
                self.wrong_type(wanted, problems);
                Vec::new()
            }
        }
    }

    /// The values of an array; of any other value the value itself.
    pub(crate) fn one_or_more(&self, wanted: &str, problems: &mut Problems<'_>) -> Vec<Element<'d>> {
        match self.item {
            Item::Value(Value::Array(array)) if array.is_empty() => {
                self.problem(problems, "an empty array", Some("nothing would ever match it"));
                Vec::new()
            }
            Item::Value(Value::Array(array)) => self.elements(array).collect(),
            Item::Value(value) => vec![Element { value, path: self.path.clone(), at: self.at }],
            _ => {
                self.wrong_type(wanted, problems);
                Vec::new()
            }
        }
    }

    fn elements(&self, array: &'d Array) -> impl Iterator<Item = Element<'d>> {
        array.iter().enumerate().map(|(index, value)| {
            let at = value.span().map_or(self.at, |span| span.start);
            Element { value, path: format!("{}[{index}]", self.path), at }
        })
    }
}

impl<'d> Element<'d> {
    /// As everywhere, the type alone is named.
    pub(crate) fn wrong_type(&self, wanted: &str, problems: &mut Problems<'_>) {
        let message = format!("expected {wanted}, found {}", type_of(self.value));
        problems.push(self.at, &self.path, message, None);
    }

    fn section(self, problems: &mut Problems<'_>) -> Option<Section<'d>> {
        let Some(table) = self.value.as_inline_table() else {
            self.wrong_type("a table", problems);
            return None;
        };
        Some(Section { table, path: self.path, at: self.at })
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::InlineTable(_) => "a table",
        Value::Array(_) => "an array",
        Value::String(_) => "a string",
        Value::Boolean(_) => "a boolean",
        Value::Integer(_) => "an integer",
        Value::Float(_) => "a float",
        Value::Datetime(_) => "a date",
    }
}

/// `did you mean` only for what looks like a slip; a far-off key gets the whole list besides.
fn nearest_hint(key: &str, known: &[&str]) -> Option<String> {
    let key = key.to_lowercase();
    let (nearest, likeness) = known
        .iter()
        .map(|candidate| (candidate, strsim::normalized_damerau_levenshtein(&key, candidate)))
        .max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    if likeness >= 0.5 {
        return Some(format!("did you mean `{nearest}`?"));
    }
    Some(format!("the nearest known key is `{nearest}`; known here: {}", known.join(", ")))
}

/// `path.key`, the key quoted where TOML would want that.
pub(crate) fn joined(path: &str, key: &str) -> String {
    let bare =
        !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    let mut whole = path.to_owned();
    if !whole.is_empty() {
        whole.push('.');
    }
    // Writing to a String cannot fail.
    let _ = if bare { write!(whole, "{}", shown(key)) } else { write!(whole, "\"{}\"", shown(key)) };
    whole
}

/// A text from the file, made safe for a terminal and short enough for a line.
pub(crate) fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 64;
    let mut shown: String = text.chars().take(MAX_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        shown.push('…');
    }
    shown
}
