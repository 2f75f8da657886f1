//! Copies a store from files to an empty database. The files stay as they are; a copy that was interrupted
//! goes on. At the end both sides are compared, row by row.

use rusqlite::types::ValueRef;
use serde_json::{Map, Value};

use super::config::StoreConfig;
use super::error::StoreError;
use super::postgres::Target;
use super::sqlite::Source;
use super::tables::{RowsDigest, TABLES, Table};
use wire::units::Secret;

/// About this many bytes of text are sent at a time.
const BATCH: usize = 4 << 20;

/// A table that was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Its name.
    pub table: &'static str,
    /// Its rows.
    pub rows: u64,
}

/// Copies the store of a state directory to a database, and compares both.
///
/// # Errors
/// When a process uses the files, when the database holds other rows than a copy of these files, or when
/// either cannot be used.
pub fn copy_to_database(
    config: &StoreConfig,
    url: &Secret,
    mut show: impl FnMut(&Copied),
) -> Result<(), StoreError> {
    let source = Source::open(&config.state_dir)?;
    let mut target = Target::open(url.expose_secret())?;
    for table in &TABLES {
        let digest = copy_table(&source, &mut target, table)?;
        let found = target.read_all(table)?;
        if found != digest {
            return Err(StoreError(format!(
                "the table `{}` of the database does not equal that of the files after the copy ({} and {} rows): name an empty \
                 database, or drop its schema `respool` if it was made by mistake",
                table.name, found.rows, digest.rows
            )));
        }
        show(&Copied { table: table.name, rows: digest.rows });
    }
    Ok(())
}

fn copy_table(source: &Source, target: &mut Target, table: &Table) -> Result<RowsDigest, StoreError> {
    let (mut digest, mut batch, mut size) = (RowsDigest::default(), Vec::new(), 0);
    source.read_rows(table, |row| {
        let texts =
            row.iter().zip(table.columns).map(|(value, column)| text_of(*value, table.is_flag(column)));
        let texts: Vec<Option<String>> = texts.collect();
        digest.add_row(texts.iter().map(Option::as_deref));
        size += texts.iter().flatten().map(String::len).sum::<usize>();
        batch.push(json_row(table.columns, texts));
        if size < BATCH {
            return Ok(());
        }
        size = 0;
        target.write_rows(table, std::mem::take(&mut batch))
    })?;
    target.write_rows(table, batch)?;
    Ok(digest)
}

fn json_row(columns: &[&str], texts: Vec<Option<String>>) -> Value {
    let fields = columns.iter().zip(texts).map(|(name, text)| ((*name).to_owned(), Value::from(text)));
    Value::Object(fields.collect::<Map<_, _>>())
}

/// A value as the database writes it.
fn text_of(value: ValueRef<'_>, is_flag: bool) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) if is_flag => Some(if number == 0 { "false" } else { "true" }.to_owned()),
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
    }
}
