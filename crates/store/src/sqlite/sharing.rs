//! A store in files is that of one process.

use super::store::SqliteStore;
use crate::nodes::Nodes;

impl Nodes for SqliteStore {}
