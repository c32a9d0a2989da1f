//! Forms: what the text of a folded statement depends on.
//!
//! Batches of one form share the text of this form. Batches of different forms share the text of
//! a *wide* form, which has the groups of all of them; a group without rows is bound to empty
//! arrays.
//!
//! Invariants:
//! - Every form belongs to one wide form of the connection, and a wide form has at most `WIDEST`
//!   groups. So the number of texts grows with the number of forms, not with the number of their
//!   combinations. Without this, a lane would prepare a new statement for nearly every fold of an
//!   application with many tables.
//! - The table of a group is compared by address. A table whose columns were read again, for
//!   example after a migration, gets a new text.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::db::{ChangeKind, CommitBatch, ExpectedRow, RowChange, TableInfo};
use crate::domain::TableKey;

/// How many groups a wide form may have. Every group costs time in every execution; more groups
/// let more batches share a statement.
const WIDEST: usize = 16;

/// How many texts and wide forms a connection keeps. Building them again takes microseconds.
const KEPT: usize = 128;

/// What happens to the rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Role {
    Insert,
    Update,
    Delete,
    /// The rows must be unchanged, and are locked.
    Expect,
    /// The rows must be unchanged, and are not locked.
    ExpectUnlocked,
}

impl Role {
    pub(super) fn of_expected(row: &ExpectedRow) -> Self {
        if row.is_locked { Role::Expect } else { Role::ExpectUnlocked }
    }

    /// Whether the rows are written, and not only compared.
    pub(super) fn writes(self) -> bool {
        matches!(self, Role::Insert | Role::Update | Role::Delete)
    }
}

impl From<ChangeKind> for Role {
    fn from(kind: ChangeKind) -> Self {
        match kind {
            ChangeKind::Insert => Role::Insert,
            ChangeKind::Update => Role::Update,
            ChangeKind::Delete => Role::Delete,
        }
    }
}

/// The rows of one table and role.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) table: Arc<TableInfo>,
    pub(super) role: Role,
}

impl Group {
    fn of(row: &RowChange) -> Self {
        Self { table: row.table.clone(), role: row.kind.into() }
    }

    /// The order in which groups lock their rows.
    pub(super) fn key(&self) -> (TableKey, Role) {
        (self.table.table.key(), self.role)
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.table, &other.table) && self.role == other.role
    }
}

impl Eq for Group {}

impl Hash for Group {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.table).hash(state);
        self.role.hash(state);
    }
}

/// The groups of a statement, in their order, and whether it checks fences.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Form {
    pub(super) groups: Vec<Group>,
    pub(super) fenced: bool,
}

impl Form {
    pub(super) fn of(batch: &CommitBatch) -> Self {
        let mut form = Form { groups: Vec::new(), fenced: !batch.fences.is_empty() };
        for row in batch.changes.iter().chain(&batch.records) {
            form.add(&row.table, row.kind.into());
        }
        for row in &batch.expected {
            form.add(&row.table, Role::of_expected(row));
        }
        form
    }

    fn add(&mut self, table: &Arc<TableInfo>, role: Role) {
        match self.find(table.table.key(), role) {
            Ok(at) => self.groups[at].table = table.clone(),
            Err(at) => self.groups.insert(at, Group { table: table.clone(), role }),
        }
    }

    /// The position of a group, or the one at which it is to be inserted.
    pub(super) fn find(&self, table: TableKey, role: Role) -> Result<usize, usize> {
        self.groups.binary_search_by_key(&(table, role), Group::key)
    }

    fn include(&mut self, other: &Form) {
        other.groups.iter().for_each(|group| self.add(&group.table, group.role));
        self.fenced |= other.fenced;
    }

    fn covers(&self, other: &Form) -> bool {
        let has = |group: &Group| self.find(group.table.table.key(), group.role);
        self.fenced >= other.fenced
            && other.groups.iter().all(|group| has(group).is_ok_and(|at| self.groups[at] == *group))
    }
}

/// The forms that a connection has met.
#[derive(Default)]
pub(super) struct Forms {
    wide: Vec<Form>,
    texts: HashMap<Form, Arc<str>>,
    /// The texts that write one row and its record.
    singles: HashMap<[Group; 2], Arc<str>>,
}

impl Forms {
    /// Divides batches so that each part can share a statement: a number for each batch.
    pub(super) fn part(&mut self, batches: &[&CommitBatch]) -> Vec<usize> {
        let forms: Vec<Form> = batches.iter().map(|batch| Form::of(batch)).collect();
        if forms.iter().all(|form| *form == forms[0]) {
            return vec![0; batches.len()];
        }
        if self.wide.len() > KEPT {
            self.wide.clear();
        }
        forms.iter().map(|form| self.widen(form)).collect()
    }

    /// The number of the wide form to which a form belongs.
    fn widen(&mut self, form: &Form) -> usize {
        if let Some(at) = self.wide.iter().position(|wide| wide.covers(form)) {
            return at;
        }
        for (at, wide) in self.wide.iter_mut().enumerate() {
            let mut wider = wide.clone();
            wider.include(form);
            if wider.groups.len() <= WIDEST {
                *wide = wider;
                return at;
            }
        }
        self.wide.push(form.clone());
        self.wide.len() - 1
    }

    /// The form of a statement for these batches.
    pub(super) fn common(&self, batches: &[&CommitBatch]) -> Form {
        let mut union = Form::default();
        let mut is_mixed = false;
        for batch in batches {
            let form = Form::of(batch);
            is_mixed |= !union.groups.is_empty() && form != union;
            union.include(&form);
        }
        let wide = self.wide.iter().find(|wide| wide.covers(&union));
        wide.filter(|_| is_mixed).cloned().unwrap_or(union)
    }

    /// The text for a form, which `build` makes.
    pub(super) fn text(&mut self, form: &Form, build: impl FnOnce(&Form) -> String) -> Arc<str> {
        if let Some(text) = self.texts.get(form) {
            return text.clone();
        }
        if self.texts.len() >= KEPT {
            self.texts.clear();
        }
        let text: Arc<str> = build(form).into();
        self.texts.insert(form.clone(), text.clone());
        text
    }

    /// The text that writes one row and its record, which `build` makes.
    pub(super) fn single(
        &mut self,
        row: &RowChange,
        record: &RowChange,
        build: impl FnOnce(&RowChange, &RowChange) -> String,
    ) -> Arc<str> {
        let key = [row, record].map(Group::of);
        if let Some(text) = self.singles.get(&key) {
            return text.clone();
        }
        if self.singles.len() >= KEPT {
            self.singles.clear();
        }
        let text: Arc<str> = build(row, record).into();
        self.singles.insert(key, text.clone());
        text
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::db::ActionId;
    use crate::db::fixtures::{change, table};
    use crate::domain::{ColumnDef, Table, ValueType};

    /// As many tables as a test asks for.
    fn tables(count: usize) -> Vec<Arc<TableInfo>> {
        static COLUMNS: [ColumnDef; 2] =
            [ColumnDef::new("id", ValueType::Uuid), ColumnDef::new("version", ValueType::Int)];
        let of = |n: usize| Table {
            schema: None,
            name: format!("t{n:03}").leak(),
            model: "Model",
            columns: &COLUMNS,
            version: Some(1),
            dates: None,
            state: None,
        };
        (0..count).map(|n| table(Box::leak(Box::new(of(n))), |_| "uuid")).collect()
    }

    fn updates(of: &[&Arc<TableInfo>]) -> CommitBatch {
        CommitBatch {
            action: ActionId(Uuid::nil()),
            changes: of.iter().map(|table| change(table, ChangeKind::Update)).collect(),
            expected: Vec::new(),
            records: Vec::new(),
            fences: Vec::new(),
            traceable: true,
            turns: Vec::new(),
        }
    }

    #[test]
    fn batches_of_one_form_share_the_text_of_this_form() {
        let tables = tables(2);
        let batch = updates(&[&tables[0], &tables[1]]);
        let mut forms = Forms::default();
        assert_eq!(forms.part(&[&batch, &batch]), [0, 0]);
        assert_eq!(forms.common(&[&batch, &batch]), Form::of(&batch));
    }

    #[test]
    fn combinations_of_forms_need_few_texts() {
        let tables = tables(40);
        let batches: Vec<CommitBatch> = tables.iter().map(|table| updates(&[table])).collect();
        let mut forms = Forms::default();
        let mut random = 1_usize;
        for _ in 0..2_000 {
            let mut flight: Vec<&CommitBatch> = Vec::new();
            for _ in 0..8 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                flight.push(&batches[(random >> 33) % batches.len()]);
            }
            let parts = forms.part(&flight);
            for part in 0..=parts.iter().copied().max().unwrap_or_default() {
                let of_part = parts.iter().zip(&flight).filter(|(of, _)| **of == part);
                let of_part: Vec<&CommitBatch> = of_part.map(|(_, batch)| *batch).collect();
                if of_part.is_empty() {
                    continue;
                }
                let form = forms.common(&of_part);
                assert!(form.groups.len() <= WIDEST);
                assert!(of_part.iter().all(|batch| form.covers(&Form::of(batch))));
                forms.text(&form, |_| String::new());
            }
        }
        // One for each form, and one for each time that a wide form grew.
        assert!(forms.texts.len() <= 2 * tables.len(), "{} texts", forms.texts.len());
        assert_eq!(forms.wide.len(), 3);
    }

    #[test]
    fn a_table_that_was_read_again_gets_a_new_text() {
        let (old, new) = (&tables(1)[0], &tables(1)[0]);
        assert_eq!(old.table.key(), new.table.key());
        assert_ne!(Form::of(&updates(&[old])), Form::of(&updates(&[new])));
        let mut forms = Forms::default();
        let mut single = |table, record| {
            let rows = [change(table, ChangeKind::Update), change(record, ChangeKind::Insert)];
            let mut is_built = false;
            forms.single(&rows[0], &rows[1], |_, _| {
                is_built = true;
                String::new()
            });
            is_built
        };
        assert_eq!([single(old, old), single(old, old)], [true, false]);
        assert_eq!([single(new, old), single(old, new), single(new, new)], [true; 3]);
    }
}
