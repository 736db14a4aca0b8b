//! The edits on the TOML document itself, without files.

use toml_edit::{Decor, DocumentMut, InlineTable, Item, Key, RawString, Table, Value, value};

use crate::name::UpstreamName;

/// `upstream` is there and is no table.
pub(super) struct NoTable;

/// The names of all well-named upstreams, whatever is in them.
pub(super) fn names(document: &DocumentMut) -> Vec<UpstreamName> {
    let upstreams = document.get("upstream").and_then(Item::as_table_like);
    upstreams.into_iter().flat_map(|table| table.iter()).filter_map(|(key, _)| key.parse().ok()).collect()
}

/// Inserts `[upstream.NAME]`, or the same as an inline table if the file keeps its upstreams in one.
pub(super) fn insert(
    document: &mut DocumentMut,
    name: &UpstreamName,
    url: &str,
    headers: &[(String, String)],
) -> Result<(), NoTable> {
    let upstreams = document.entry("upstream").or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let mut table = Table::new();
    table.insert("url", value(url));
    if !headers.is_empty() {
        table.insert("headers", Item::Table(header_table(headers)));
    }
    if let Some(upstreams) = upstreams.as_table_mut() {
        upstreams.insert(name.as_str(), Item::Table(table));
        return Ok(());
    }
    let upstreams = upstreams.as_inline_table_mut().ok_or(NoTable)?;
    upstreams.insert(name.as_str(), Value::InlineTable(table.into_inline_table()));
    Ok(())
}

/// Dotted, so that the headers stand as `headers.Authorization = …` within the upstream's own table.
fn header_table(headers: &[(String, String)]) -> Table {
    let mut table = Table::new();
    table.set_dotted(true);
    for (name, text) in headers {
        table.insert_formatted(&Key::new(name), Item::Value(header_value(text)));
    }
    table
}

fn header_value(text: &str) -> Value {
    let Some((prefix, var)) = variable(text) else { return text.into() };
    let mut source = InlineTable::new();
    source.insert("env", var.into());
    if !prefix.is_empty() {
        source.insert("prefix", prefix.into());
    }
    Value::InlineTable(source)
}

/// Splits `PREFIX${VAR}`.
fn variable(text: &str) -> Option<(&str, &str)> {
    let (prefix, rest) = text.split_once("${")?;
    let var = rest.strip_suffix('}')?;
    (!prefix.contains('$') && !var.contains(['$', '{', '}'])).then_some((prefix, var))
}

/// Removes `upstream.NAME`, and hands the comments that are not its own to what follows it.
pub(super) fn remove(document: &mut DocumentMut, name: &UpstreamName) {
    let Some(upstreams) = document.get_mut("upstream").and_then(Item::as_table_like_mut) else { return };
    let Some(removed) = upstreams.remove(name.as_str()) else { return };
    let Some(table) = removed.as_table() else { return };
    let Some(kept) = comments_apart(table.decor()) else { return };
    // Its own, not that of the last table below it: others may stand in between, and the comments stood above both.
    let Some(position) = table.position() else { return };
    match following(document.as_table_mut(), position) {
        Some(next) => prepend(next.decor_mut(), &kept),
        None => {
            let trailing = document.trailing().as_str().unwrap_or_default().to_owned();
            document.set_trailing(kept + &trailing);
        }
    }
}

/// What stands above a header and is set off from it by a blank line: all but the last paragraph.
fn comments_apart(decor: &Decor) -> Option<String> {
    let above = decor.prefix().and_then(RawString::as_str)?;
    let mut kept = String::new();
    let mut paragraph = String::new();
    for line in above.split_inclusive('\n') {
        paragraph.push_str(line);
        if line.trim().is_empty() {
            kept.push_str(&paragraph);
            paragraph.clear();
        }
    }
    kept.contains('#').then_some(kept)
}

/// The tables directly below one, those of arrays each.
fn below(table: &Table) -> impl Iterator<Item = &Table> {
    table.iter().flat_map(|(_, item)| {
        item.as_table().into_iter().chain(item.as_array_of_tables().into_iter().flatten())
    })
}

/// The table whose header comes next after a place.
fn following(table: &mut Table, position: isize) -> Option<&mut Table> {
    let next = next_position(table, position)?;
    at_position(table, next)
}

fn next_position(table: &Table, after: isize) -> Option<isize> {
    let own = table.position().filter(|own| *own > after && !table.is_implicit() && !table.is_dotted());
    own.into_iter().chain(below(table).filter_map(|sub| next_position(sub, after))).min()
}

fn at_position(table: &mut Table, position: isize) -> Option<&mut Table> {
    if table.position() == Some(position) && !table.is_implicit() && !table.is_dotted() {
        return Some(table);
    }
    table.iter_mut().find_map(|(_, item)| match item {
        Item::Table(sub) => at_position(sub, position),
        Item::ArrayOfTables(subs) => subs.iter_mut().find_map(|sub| at_position(sub, position)),
        _ => None,
    })
}

fn prepend(decor: &mut Decor, kept: &str) {
    let above = decor.prefix().and_then(RawString::as_str).unwrap_or_default();
    // One blank line between the two, not two.
    let above = if kept.ends_with("\n\n") { above.trim_start_matches('\n') } else { above };
    let whole = format!("{kept}{above}");
    decor.set_prefix(whole);
}

/// The document as text, with the line ends of the file that it came from. Only a file that has one kind
/// throughout is converted: a lone line feed may be inside a string, where it is part of the value.
pub(super) fn rendered(document: &DocumentMut, original: &str) -> String {
    let text = document.to_string();
    let pairs = original.matches("\r\n").count();
    if pairs > 0 && pairs == original.matches('\n').count() {
        text.replace("\r\n", "\n").replace('\n', "\r\n")
    } else {
        text
    }
}
