//! A piece of a stream in memory, which moves forward over it.

use std::io::{self, Read};

use bytes::{Buf, BytesMut};

/// Bytes asked for in one read.
const CHUNK: usize = 64 << 10;

/// Looks at a stream without holding more of it than was asked for.
#[derive(Debug)]
pub(super) struct Window<R> {
    source: R,
    bytes: BytesMut,
    /// Position of `bytes` in the stream.
    offset: u64,
    ended: bool,
    error: Option<io::Error>,
}

impl<R: Read> Window<R> {
    pub(super) fn new(source: R) -> Self {
        Window { source, bytes: BytesMut::new(), offset: 0, ended: false, error: None }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The error that ended the stream, once.
    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// The next bytes, `len` of them or all that are left.
    pub(super) fn peek(&mut self, len: usize) -> &[u8] {
        while self.bytes.len() < len && !self.ended {
            self.read_more();
        }
        self.bytes.get(..len).unwrap_or(&self.bytes)
    }

    /// All bytes in memory: at least one where any are left.
    pub(super) fn peek_some(&mut self) -> &[u8] {
        self.peek(1);
        &self.bytes
    }

    /// Moves forward over bytes that were peeked.
    pub(super) fn advance(&mut self, len: usize) {
        let len = len.min(self.bytes.len());
        self.bytes.advance(len);
        self.offset += len as u64;
    }

    fn read_more(&mut self) {
        let filled = self.bytes.len();
        self.bytes.resize(filled + CHUNK, 0);
        let result = self.source.read(self.bytes.get_mut(filled..).unwrap_or_default());
        let read = match result {
            Ok(0) => {
                self.ended = true;
                0
            }
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => {
                self.ended = true;
                self.error = Some(error);
                0
            }
        };
        self.bytes.truncate(filled + read);
    }
}
