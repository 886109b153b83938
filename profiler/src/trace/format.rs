//! The framing: the file header and the headers of blocks, little-endian, of fixed length.
//! `docs/trace-format.md` describes them; both change together.

use bytes::{Buf, BufMut, BytesMut};

/// Not ASCII in front, so that no text file begins so; the line end shows a transfer in text mode.
pub const MAGIC: [u8; 8] = *b"\x8cSTALL\r\n";
/// A reader refuses files with a higher one.
pub const MAJOR: u16 = 1;
/// Raised by additions that an older reader can skip.
pub const MINOR: u16 = 4;
/// Length of the file header that this version writes.
pub const FILE_HEADER: usize = 20;
/// A file header is no longer than this in any version.
pub const FILE_HEADER_MAX: usize = 4096;

/// First bytes of each block; found again after damage.
pub const SYNC: [u8; 4] = *b"\xb5SBK";
pub const BLOCK_HEADER: usize = 28;
/// Uncompressed payload that a writer aims to stay below, bytes.
pub const BLOCK_TARGET: usize = 1 << 20;
/// Uncompressed payload, and payload as stored, that a reader accepts at most, bytes.
pub const BLOCK_MAX: usize = 4 << 20;

/// The payload is a zstd frame; without it, it is stored as it is.
pub const FLAG_ZSTD: u16 = 1;
/// Flags that this version knows; a block with others is skipped like one of an unknown kind.
pub const FLAGS_KNOWN: u16 = FLAG_ZSTD;

/// The versions in a file header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub major: u16,
    pub minor: u16,
}

/// Length of the file header by its own account; `None` where the magic does not fit, the bytes do not
/// reach that far, or the length is impossible.
pub fn file_header_len(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes.strip_prefix(&MAGIC)?;
    rest.try_get_u32_le().ok()?;
    let len = rest.try_get_u32_le().ok()? as usize;
    (FILE_HEADER..=FILE_HEADER_MAX).contains(&len).then_some(len)
}

/// The versions of a whole file header; `None` where its checksum does not match.
pub fn decode_file_header(header: &[u8]) -> Option<Version> {
    let (body, mut crc) = header.split_at_checked(header.len().checked_sub(4)?)?;
    if crc.try_get_u32_le().ok()? != crc32fast::hash(body) {
        return None;
    }
    let mut fields = body.strip_prefix(&MAGIC)?;
    Some(Version { major: fields.try_get_u16_le().ok()?, minor: fields.try_get_u16_le().ok()? })
}

/// A file header of [`FILE_HEADER`] bytes.
pub fn encode_file_header(version: Version) -> BytesMut {
    let mut out = BytesMut::with_capacity(FILE_HEADER);
    out.put_slice(&MAGIC);
    out.put_u16_le(version.major);
    out.put_u16_le(version.minor);
    out.put_u32_le(FILE_HEADER as u32);
    let crc = crc32fast::hash(&out);
    out.put_u32_le(crc);
    out
}

/// What stands before each payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    pub kind: u16,
    pub flags: u16,
    /// Records in the payload.
    pub records: u32,
    /// Length of the payload when it is unpacked.
    pub unpacked_len: u32,
    /// Length of the payload in the file.
    pub stored_len: u32,
    /// Of the payload as it is in the file.
    pub payload_crc: u32,
}

impl BlockHeader {
    pub fn encode(self, out: &mut BytesMut) {
        let from = out.len();
        out.put_slice(&SYNC);
        out.put_u16_le(self.kind);
        out.put_u16_le(self.flags);
        out.put_u32_le(self.records);
        out.put_u32_le(self.unpacked_len);
        out.put_u32_le(self.stored_len);
        out.put_u32_le(self.payload_crc);
        let crc = crc32fast::hash(out.get(from..).unwrap_or_default());
        out.put_u32_le(crc);
    }

    /// The header at the beginning of `bytes`; `None` where there is none, its checksum does not match, or
    /// its lengths are above [`BLOCK_MAX`].
    pub fn decode(bytes: &[u8]) -> Option<BlockHeader> {
        let (body, mut crc) = bytes.get(..BLOCK_HEADER)?.split_at_checked(BLOCK_HEADER - 4)?;
        let mut fields = body.strip_prefix(&SYNC)?;
        if crc.try_get_u32_le().ok()? != crc32fast::hash(body) {
            return None;
        }
        let header = BlockHeader {
            kind: fields.try_get_u16_le().ok()?,
            flags: fields.try_get_u16_le().ok()?,
            records: fields.try_get_u32_le().ok()?,
            unpacked_len: fields.try_get_u32_le().ok()?,
            stored_len: fields.try_get_u32_le().ok()?,
            payload_crc: fields.try_get_u32_le().ok()?,
        };
        let largest = header.unpacked_len.max(header.stored_len);
        (largest as usize <= BLOCK_MAX).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_header_keeps_its_versions() {
        let header = encode_file_header(Version { major: 7, minor: 9 });
        assert_eq!(header.len(), FILE_HEADER);
        assert_eq!(file_header_len(&header), Some(FILE_HEADER));
        assert_eq!(decode_file_header(&header), Some(Version { major: 7, minor: 9 }));
    }

    #[test]
    fn any_flipped_bit_of_a_file_header_shows() {
        let header = encode_file_header(Version { major: 1, minor: 0 });
        for bit in 0..FILE_HEADER * 8 {
            let mut bad = header.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_file_header(&bad), None, "bit {bit}");
        }
    }

    #[test]
    fn a_block_header_with_impossible_lengths_is_none() {
        let header = BlockHeader {
            kind: 3,
            flags: FLAG_ZSTD,
            records: 2,
            unpacked_len: BLOCK_MAX as u32,
            stored_len: 17,
            payload_crc: 5,
        };
        let mut bytes = BytesMut::new();
        header.encode(&mut bytes);
        assert_eq!(bytes.len(), BLOCK_HEADER);
        assert_eq!(BlockHeader::decode(&bytes), Some(header));

        let mut bytes = BytesMut::new();
        BlockHeader { unpacked_len: BLOCK_MAX as u32 + 1, ..header }.encode(&mut bytes);
        assert_eq!(BlockHeader::decode(&bytes), None);
    }
}
