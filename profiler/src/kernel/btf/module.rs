//! Types of a module, which go on where those of the kernel itself end.

use std::path::Path;
use std::sync::Arc;

use super::{Btf, BtfError, KIND_FUNC_PROTO, Kind, read, word};

impl Btf {
    /// The types of a module that is loaded; `base` are the kernel's own.
    pub fn from_module(name: &str, base: &Arc<Btf>) -> Result<Btf, BtfError> {
        let path = Path::new("/sys/kernel/btf").join(name);
        Btf::parse_module(read(&path)?, base)
    }

    /// The same from bytes.
    pub fn parse_module(bytes: Vec<u8>, base: &Arc<Btf>) -> Result<Btf, BtfError> {
        Btf::parse_on(Some(Arc::clone(base)), bytes)
    }

    /// Number of the first type: 1, or what follows the last one of the kernel.
    pub(super) fn first_type(&self) -> u32 {
        self.base.as_ref().map_or(1, |base| base.types.len() as u32 + 1)
    }

    /// Place of a function's parameter, 0 first, by any of these names.
    pub fn parameter(&self, function: &str, names: &[&str]) -> Option<u8> {
        let first = self.first_type();
        let own = |id: u32| {
            let position = self.types.get(id.checked_sub(first)? as usize)?;
            self.type_at(*position as usize)
        };
        let prototype = own(self.id(Kind::Func, function)?)?.target;
        if let Some(base) = self.base.as_ref().filter(|_| prototype < first) {
            return base.parameter_of(prototype, names);
        }
        self.parameter_of(prototype, names)
    }

    fn parameter_of(&self, prototype: u32, names: &[&str]) -> Option<u8> {
        let position = *self.types.get(prototype.checked_sub(self.first_type())? as usize)?;
        let prototype = self.type_at(position as usize)?;
        if prototype.kind != KIND_FUNC_PROTO {
            return None;
        }
        let is_wanted = |place: &u32| {
            let name = word(&self.bytes, prototype.body + *place as usize * 8);
            let name = name.and_then(|name| self.string(name));
            name.is_some_and(|name| names.iter().any(|wanted| wanted.as_bytes() == name))
        };
        let place = (0..prototype.vlen).find(is_wanted)?;
        u8::try_from(place).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Builder;
    use super::super::{KIND_FUNC, KIND_INT, KIND_STRUCT};
    use super::*;

    /// `int`, `struct inner { int x; int y; }`, and a function `shared(int size)`.
    fn kernel() -> Arc<Btf> {
        let mut b = Builder::default();
        b.head("int", KIND_INT, 0, false, 4); // 1
        b.words(&[0x0100_0020]);
        b.head("inner", KIND_STRUCT, 2, false, 8); // 2
        b.member("x", 1, 0);
        b.member("y", 1, 32);
        b.head("", KIND_FUNC_PROTO, 1, false, 1); // 3
        let name = b.name("size");
        b.words(&[name, 1]);
        b.head("shared", KIND_FUNC, 0, false, 3); // 4
        Arc::new(Btf::parse(b.bytes()).unwrap())
    }

    /// `struct outer { int a; struct inner b; }`, `get(int first, int size)`, `other` of the kernel's prototype.
    fn module(base: &Arc<Btf>) -> Vec<u8> {
        let size = base.strings.len() as u32;
        let mut b = Builder::default();
        b.first_string = size;
        b.head("outer", KIND_STRUCT, 2, false, 12); // 5
        b.member("a", 1, 0);
        b.member("b", 2, 32);
        b.head("", KIND_FUNC_PROTO, 2, false, 1); // 6
        // The second name is one of the kernel's strings.
        let (first, shared) = (b.name("first"), base_string(base, "size"));
        b.words(&[first, 1, shared, 1]);
        b.head("get", KIND_FUNC, 0, false, 6); // 7
        b.head("other", KIND_FUNC, 0, false, 3); // 8
        b.bytes()
    }

    fn base_string(base: &Btf, wanted: &str) -> u32 {
        (0..base.strings.len() as u32).find(|at| base.string(*at) == Some(wanted.as_bytes())).unwrap()
    }

    #[test]
    fn a_module_s_types_refer_to_the_kernel_s() {
        let base = kernel();
        let types = Btf::parse_module(module(&base), &base).unwrap();
        assert_eq!(types.id(Kind::Func, "get"), Some(7));
        assert_eq!(types.member_offset("outer", &["a"]), Some(0));
        assert_eq!(types.member_offset("outer", &["b", "y"]), Some(8));
        assert_eq!(types.member_offset("inner", &["y"]), None, "that one is the kernel's");
    }

    #[test]
    fn parameters_are_found_by_name() {
        let base = kernel();
        let types = Btf::parse_module(module(&base), &base).unwrap();
        assert_eq!(types.parameter("get", &["length", "size"]), Some(1));
        assert_eq!(types.parameter("get", &["none"]), None);
        assert_eq!(types.parameter("other", &["size"]), Some(0));
        assert_eq!(base.parameter("shared", &["size"]), Some(0));
    }

    #[test]
    fn damage_at_any_byte_of_a_module_never_panics() {
        let base = kernel();
        let good = module(&base);
        for position in 0..good.len() {
            for value in [0x00, 0x7f, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[position] = value;
                if let Ok(types) = Btf::parse_module(bad, &base) {
                    let _ = types.member_offset("outer", &["b", "y"]);
                    let _ = types.parameter("get", &["size"]);
                }
            }
        }
    }
}
