//! Strings that occur in millions of places, kept once.

use std::collections::HashMap;
use std::sync::Arc;

/// Index into an [`Interner`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u32);

/// Gives each distinct string a number. Number 0 is the empty string: unknown.
#[derive(Clone, Debug)]
pub struct Interner {
    names: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, NameId>,
}

impl Default for Interner {
    fn default() -> Interner {
        let empty: Arc<str> = Arc::from("");
        Interner { names: vec![Arc::clone(&empty)], ids: HashMap::from([(empty, NameId(0))]) }
    }
}

impl Interner {
    /// The number of `name`, a new one where it was not seen before. Once the numbers are used up, which
    /// takes four thousand million distinct strings, everything new is unknown.
    pub fn intern(&mut self, name: &str) -> NameId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let Ok(next) = u32::try_from(self.names.len()) else { return NameId(0) };
        let name: Arc<str> = Arc::from(name);
        self.names.push(Arc::clone(&name));
        self.ids.insert(name, NameId(next));
        NameId(next)
    }

    /// The number of a string that was interned before.
    pub fn find(&self, name: &str) -> Option<NameId> {
        self.ids.get(name).copied()
    }

    /// The string with this number, empty for a number that was never given.
    pub fn name(&self, id: NameId) -> &str {
        self.names.get(id.0 as usize).map_or("", |name| name)
    }

    /// The same, shared.
    pub fn shared(&self, id: NameId) -> Arc<str> {
        self.names.get(id.0 as usize).or_else(|| self.names.first()).map_or_else(|| Arc::from(""), Arc::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_string_gets_the_same_number() {
        let mut interner = Interner::default();
        let a = interner.intern("10.0.0.1:53");
        let b = interner.intern("10.0.0.2:53");
        assert_eq!(interner.intern("10.0.0.1:53"), a);
        assert_ne!(a, b);
        assert_eq!(interner.name(b), "10.0.0.2:53");
    }

    #[test]
    fn number_zero_is_the_empty_string() {
        let mut interner = Interner::default();
        assert_eq!(interner.intern(""), NameId(0));
        assert_eq!(interner.name(NameId(99)), "");
        assert_eq!(&*interner.shared(NameId(99)), "");
    }
}
