//! A small reader of BTF, the kernel's own description of its types.
//!
//! aya reads BTF to load programs, and hides the members. Only what finds the byte offset of a structure's
//! member, or the id of a type, is read here. The input is hostile: every index is checked, every walk bounded.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

mod module;

/// Where the kernel shows its BTF.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// More than ten times what a kernel with everything built in has.
const MAX_BYTES: u64 = 64 << 20;
/// Typedefs, qualifiers and nested anonymous members that are followed at most.
const MAX_DEPTH: u32 = 32;

const MAGIC: u16 = 0xeb9f;

const KIND_INT: u32 = 1;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;

#[derive(Debug, Error)]
pub enum BtfError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("BTF is larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("no BTF: the magic number is {found:#x}")]
    Magic { found: u16 },
    #[error("BTF ends in the middle of {what}")]
    Truncated { what: &'static str },
    #[error("BTF type {id} has the unknown kind {kind}")]
    UnknownKind { id: u32, kind: u32 },
}

/// What a type id can be asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Struct,
    Typedef,
    Func,
}

/// The types of a kernel.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    /// Position of each type in `bytes`; id 1 is the first.
    types: Vec<u32>,
    strings: std::ops::Range<usize>,
    names: HashMap<(Kind, Box<[u8]>), u32>,
    /// Of a module: the kernel's own types, whose numbers and strings come before.
    base: Option<Arc<Btf>>,
}

/// A type's fixed part.
#[derive(Clone, Copy)]
struct Type {
    /// Position of what follows the fixed part.
    body: usize,
    name: u32,
    kind: u32,
    vlen: u32,
    kind_flag: bool,
    /// Id of the type that is referred to, for those that refer to one.
    target: u32,
}

impl Btf {
    /// The running kernel's types.
    pub fn from_kernel() -> Result<Btf, BtfError> {
        Btf::from_file(Path::new(VMLINUX))
    }

    pub fn from_file(path: &Path) -> Result<Btf, BtfError> {
        Btf::parse(read(path)?)
    }

    /// Reads the table of types. The order of bytes is the host's, as the kernel writes it.
    pub fn parse(bytes: Vec<u8>) -> Result<Btf, BtfError> {
        Btf::parse_on(None, bytes)
    }

    fn parse_on(base: Option<Arc<Btf>>, bytes: Vec<u8>) -> Result<Btf, BtfError> {
        if bytes.len() as u64 > MAX_BYTES {
            return Err(BtfError::TooLarge);
        }
        let header = BtfError::Truncated { what: "the header" };
        let magic = bytes.get(..2).ok_or(BtfError::Truncated { what: "the magic number" })?;
        let magic = u16::from_ne_bytes([magic[0], magic[1]]);
        if magic != MAGIC {
            return Err(BtfError::Magic { found: magic });
        }
        let mut fields = [0_u32; 5];
        for (index, field) in fields.iter_mut().enumerate() {
            let Some(value) = word(&bytes, 4 + index * 4) else { return Err(header) };
            *field = value;
        }
        let [header_len, type_off, type_len, str_off, str_len] = fields;
        let types = section(&bytes, header_len, type_off, type_len)
            .ok_or(BtfError::Truncated { what: "the type section" })?;
        let strings = section(&bytes, header_len, str_off, str_len)
            .ok_or(BtfError::Truncated { what: "the string section" })?;
        let mut btf = Btf { bytes, types: Vec::new(), strings, names: HashMap::new(), base };
        btf.index(types)?;
        Ok(btf)
    }

    fn index(&mut self, section: std::ops::Range<usize>) -> Result<(), BtfError> {
        let mut position = section.start;
        while position < section.end {
            let id = self.first_type() + self.types.len() as u32;
            let read = self.type_at(position).ok_or(BtfError::Truncated { what: "a type" })?;
            let body = body_len(read.kind, read.vlen).ok_or(BtfError::UnknownKind { id, kind: read.kind })?;
            let kind = match read.kind {
                KIND_STRUCT => Some(Kind::Struct),
                KIND_TYPEDEF => Some(Kind::Typedef),
                KIND_FUNC => Some(Kind::Func),
                _ => None,
            };
            if let Some(kind) = kind
                && let Some(name) = self.string(read.name)
                && !name.is_empty()
            {
                let name = Box::from(name);
                self.names.entry((kind, name)).or_insert(id);
            }
            self.types.push(u32::try_from(position).map_err(|_| BtfError::TooLarge)?);
            position = read.body.saturating_add(body);
            if position > section.end {
                return Err(BtfError::Truncated { what: "a type" });
            }
        }
        Ok(())
    }

    /// Id of the first type of this kind and name.
    pub fn id(&self, kind: Kind, name: &str) -> Option<u32> {
        self.names.get(&(kind, Box::from(name.as_bytes()))).copied()
    }

    /// Byte offset of `path` (member, member of the member …) within `struct strukt`. Anonymous members are
    /// looked through. `None` where there is none, or where it is a bit field that begins inside a byte.
    pub fn member_offset(&self, strukt: &str, path: &[&str]) -> Option<u32> {
        let mut id = self.id(Kind::Struct, strukt)?;
        let mut bits = 0_u32;
        for name in path {
            let (offset, member) = self.member(id, name.as_bytes(), 0)?;
            bits = bits.checked_add(offset)?;
            id = member;
        }
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// Bit offset and type of the member `name` of the structure or union `id`.
    fn member(&self, id: u32, name: &[u8], depth: u32) -> Option<(u32, u32)> {
        if depth > MAX_DEPTH {
            return None;
        }
        if let Some(base) = self.base.as_ref().filter(|_| id < self.first_type()) {
            return base.member(id, name, depth);
        }
        let strukt = self.resolved(id)?;
        if strukt.kind != KIND_STRUCT && strukt.kind != KIND_UNION {
            return None;
        }
        for index in 0..strukt.vlen as usize {
            let at = strukt.body + index * 12;
            let member_name = word(&self.bytes, at)?;
            let member_type = word(&self.bytes, at + 4)?;
            let raw = word(&self.bytes, at + 8)?;
            // With the flag the upper eight bits are a bit field's width.
            let offset = if strukt.kind_flag { raw & 0x00ff_ffff } else { raw };
            match self.string(member_name) {
                Some(found) if found == name => return Some((offset, member_type)),
                Some([]) => {
                    if let Some((inner, found)) = self.member(member_type, name, depth + 1) {
                        return Some((offset.checked_add(inner)?, found));
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// The type behind typedefs and qualifiers.
    fn resolved(&self, mut id: u32) -> Option<Type> {
        for _ in 0..MAX_DEPTH {
            let position = *self.types.get(id.checked_sub(self.first_type())? as usize)? as usize;
            let found = self.type_at(position)?;
            match found.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => {
                    id = found.target;
                }
                _ => return Some(found),
            }
        }
        None
    }

    fn type_at(&self, position: usize) -> Option<Type> {
        let info = word(&self.bytes, position.checked_add(4)?)?;
        Some(Type {
            body: position.checked_add(12)?,
            name: word(&self.bytes, position)?,
            kind: (info >> 24) & 0x1f,
            vlen: info & 0xffff,
            kind_flag: info >> 31 == 1,
            target: word(&self.bytes, position.checked_add(8)?)?,
        })
    }

    fn string(&self, offset: u32) -> Option<&[u8]> {
        let strings = self.bytes.get(self.strings.clone())?;
        let first = self.base.as_ref().map_or(0, |base| base.strings.len());
        let Some(offset) = (offset as usize).checked_sub(first) else {
            return self.base.as_ref()?.string(offset);
        };
        let tail = strings.get(offset..)?;
        let end = tail.iter().position(|byte| *byte == 0)?;
        tail.get(..end)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, BtfError> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|source| BtfError::Read { path: path.to_owned(), source })
}

/// Bytes that follow a type's fixed part, `None` for a kind that is not known.
fn body_len(kind: u32, vlen: u32) -> Option<usize> {
    let vlen = vlen as usize;
    Some(match kind {
        KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
        KIND_ARRAY => 12,
        KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => vlen * 12,
        KIND_ENUM | KIND_FUNC_PROTO => vlen * 8,
        // Pointers, forward declarations, typedefs, qualifiers, functions, floats.
        2 | 7..=12 | 16 | KIND_TYPE_TAG => 0,
        _ => return None,
    })
}

fn word(bytes: &[u8], position: usize) -> Option<u32> {
    let slice = bytes.get(position..position.checked_add(4)?)?;
    Some(u32::from_ne_bytes(slice.try_into().ok()?))
}

fn section(bytes: &[u8], header_len: u32, offset: u32, len: u32) -> Option<std::ops::Range<usize>> {
    let start = (header_len as usize).checked_add(offset as usize)?;
    let end = start.checked_add(len as usize)?;
    bytes.get(start..end)?;
    Some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds BTF by hand.
    #[derive(Default)]
    pub(super) struct Builder {
        types: Vec<u8>,
        strings: Vec<u8>,
        /// Bytes of strings that come before.
        pub(super) first_string: u32,
    }

    impl Builder {
        pub(super) fn name(&mut self, name: &str) -> u32 {
            if self.strings.is_empty() && self.first_string == 0 {
                self.strings.push(0);
            }
            if name.is_empty() {
                return 0;
            }
            let offset = self.first_string + self.strings.len() as u32;
            self.strings.extend(name.as_bytes());
            self.strings.push(0);
            offset
        }

        pub(super) fn words(&mut self, words: &[u32]) {
            self.types.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        }

        pub(super) fn head(&mut self, name: &str, kind: u32, vlen: u32, flag: bool, last: u32) {
            let name = self.name(name);
            self.words(&[name, kind << 24 | vlen | u32::from(flag) << 31, last]);
        }

        pub(super) fn member(&mut self, name: &str, of: u32, offset: u32) {
            let name = self.name(name);
            self.words(&[name, of, offset]);
        }

        pub(super) fn bytes(&self) -> Vec<u8> {
            let mut out = Vec::new();
            out.extend(MAGIC.to_ne_bytes());
            out.extend([1, 0]);
            let types = self.types.len() as u32;
            for field in [24, 0, types, types, self.strings.len() as u32] {
                out.extend(field.to_ne_bytes());
            }
            out.extend(&self.types);
            out.extend(&self.strings);
            out
        }
    }

    /// `struct outer { int a; union { struct { int b; int c; }; }; inner_t d; int bits:3, more:5; }`,
    /// `typedef const struct inner { int x; int y; } inner_t`
    fn sample() -> Vec<u8> {
        let mut b = Builder::default();
        b.head("int", KIND_INT, 0, false, 4); // 1
        b.words(&[0x0100_0020]);
        b.head("", KIND_STRUCT, 2, false, 8); // 2
        b.member("b", 1, 0);
        b.member("c", 1, 32);
        b.head("", KIND_UNION, 1, false, 8); // 3
        b.member("", 2, 0);
        b.head("inner", KIND_STRUCT, 2, false, 8); // 4
        b.member("x", 1, 0);
        b.member("y", 1, 32);
        b.head("", KIND_CONST, 0, false, 4); // 5
        b.head("inner_t", KIND_TYPEDEF, 0, false, 5); // 6
        b.head("outer", KIND_STRUCT, 5, true, 24); // 7
        b.member("a", 1, 0);
        b.member("", 3, 32);
        b.member("d", 6, 96);
        b.member("bits", 1, (3 << 24) + 160);
        b.member("more", 1, (5 << 24) + 163);
        b.head("looped", KIND_TYPEDEF, 0, false, 8); // 8
        b.head("user", KIND_STRUCT, 1, false, 8); // 9
        b.member("", 8, 0);
        b.bytes()
    }

    #[test]
    fn finds_members_through_anonymous_ones_and_typedefs() {
        let btf = Btf::parse(sample()).unwrap();
        assert_eq!(btf.member_offset("outer", &["a"]), Some(0));
        assert_eq!(btf.member_offset("outer", &["b"]), Some(4));
        assert_eq!(btf.member_offset("outer", &["c"]), Some(8));
        assert_eq!(btf.member_offset("outer", &["d", "y"]), Some(16));
        assert_eq!(btf.member_offset("outer", &["none"]), None);
        assert_eq!(btf.member_offset("absent", &["a"]), None);
        assert_eq!(btf.member_offset("outer", &["a", "x"]), None);
    }

    #[test]
    fn gives_a_bit_field_only_where_it_begins_a_byte() {
        let btf = Btf::parse(sample()).unwrap();
        assert_eq!(btf.member_offset("outer", &["bits"]), Some(20));
        assert_eq!(btf.member_offset("outer", &["more"]), None);
    }

    #[test]
    fn a_typedef_of_itself_ends() {
        let btf = Btf::parse(sample()).unwrap();
        assert_eq!(btf.id(Kind::Typedef, "looped"), Some(8));
        assert_eq!(btf.member_offset("user", &["x"]), None);
    }

    #[test]
    fn rejects_what_is_no_btf() {
        assert!(matches!(Btf::parse(Vec::new()), Err(BtfError::Truncated { .. })));
        assert!(matches!(Btf::parse(vec![0; 64]), Err(BtfError::Magic { found: 0 })));
    }

    #[test]
    fn damage_at_any_byte_never_panics() {
        let good = sample();
        for cut in 0..good.len() {
            let _ = Btf::parse(good[..cut].to_vec());
        }
        for position in 0..good.len() {
            for value in [0x00, 0x7f, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[position] = value;
                if let Ok(btf) = Btf::parse(bad) {
                    let _ = btf.member_offset("outer", &["d", "y"]);
                    let _ = btf.member_offset("user", &["x"]);
                }
            }
        }
    }
}
