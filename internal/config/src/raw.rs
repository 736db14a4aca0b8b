//! The raw form: a cursor over the parsed document that knows the path and the place of everything it hands out,
//! and reports what has the wrong type or an unknown name.

use std::fmt::Write as _;

use toml_edit::{Item, TableLike, Value};

use crate::problem::Problems;

/// A table of the document.
pub(crate) struct Section<'d> {
    table: &'d dyn TableLike,
    pub(crate) path: String,
    /// Byte offset of the key that opens it.
    pub(crate) at: usize,
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
        let message = format!("expected {wanted}, found {}", self.type_name());
        self.problem(problems, message, None);
    }

    fn type_name(&self) -> &'static str {
        match self.item {
            Item::None => "nothing",
            Item::ArrayOfTables(_) => "an array of tables",
            Item::Table(_) | Item::Value(Value::InlineTable(_)) => "a table",
            Item::Value(Value::Array(_)) => "an array",
            Item::Value(Value::String(_)) => "a string",
            Item::Value(Value::Boolean(_)) => "a boolean",
            Item::Value(Value::Integer(_)) => "an integer",
            Item::Value(Value::Float(_)) => "a float",
            Item::Value(Value::Datetime(_)) => "a date",
        }
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
