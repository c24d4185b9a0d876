//! Lines from a stream that may never end a line, or never end.

use tokio::io::{AsyncRead, AsyncReadExt};

const CHUNK_BYTES: usize = 16 << 10;

/// Reads lines of bounded length, and of bounded length in all.
pub(crate) struct Lines<R> {
    stream: R,
    chunk: Box<[u8]>,
    start: usize,
    end: usize,
    line: Vec<u8>,
    line_bytes_max: usize,
    is_cut: bool,
    bytes: usize,
    bytes_max: usize,
}

/// The stream brought more bytes than it may.
#[derive(Debug)]
pub(crate) struct TooMuch;

/// A line, without its end.
pub(crate) struct RawLine {
    /// Its text; bytes that are not UTF-8 are replaced.
    pub(crate) text: String,
    /// Whether it was longer and its rest is dropped.
    pub(crate) is_cut: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(crate) fn new(stream: R, line_bytes_max: usize, bytes_max: usize) -> Self {
        Self {
            stream,
            chunk: vec![0; CHUNK_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            line: Vec::new(),
            line_bytes_max,
            is_cut: false,
            bytes: 0,
            bytes_max,
        }
    }

    /// The next line; none at the end, which a stream that cannot be read has reached too.
    pub(crate) async fn next(&mut self) -> Result<Option<RawLine>, TooMuch> {
        loop {
            if let Some(line) = self.split() {
                return Ok(Some(line));
            }
            let count = self.stream.read(&mut self.chunk).await.unwrap_or(0);
            (self.start, self.end) = (0, count);
            self.bytes = self.bytes.saturating_add(count);
            if self.bytes > self.bytes_max {
                return Err(TooMuch);
            }
            if count == 0 {
                let is_last = !self.line.is_empty() || self.is_cut;
                return Ok(is_last.then(|| self.take()));
            }
        }
    }

    /// Moves bytes of the chunk to the line, up to its end.
    fn split(&mut self) -> Option<RawLine> {
        let fresh = &self.chunk[self.start..self.end];
        let newline = fresh.iter().position(|byte| *byte == b'\n');
        let part = &fresh[..newline.unwrap_or(fresh.len())];
        let room = self.line_bytes_max - self.line.len();
        self.is_cut |= part.len() > room;
        self.line.extend_from_slice(&part[..part.len().min(room)]);
        self.start += newline.map_or(fresh.len(), |at| at + 1);
        newline.map(|_| self.take())
    }

    fn take(&mut self) -> RawLine {
        if self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        let text = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        RawLine { text, is_cut: std::mem::take(&mut self.is_cut) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(input: &[u8], expected: &[(&str, bool)]) {
        let mut lines = Lines::new(input, 4, 200_000);
        for (text, is_cut) in expected {
            let line = lines.next().await.unwrap().unwrap();
            assert_eq!((line.text.as_str(), line.is_cut), (*text, *is_cut));
        }
        assert!(lines.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn lines_are_split_and_cut() {
        check(
            b"a\nbb\r\n\nlonger\nend",
            &[("a", false), ("bb", false), ("", false), ("long", true), ("end", false)],
        )
        .await;
        check(b"", &[]).await;
        check(&vec![b'x'; 100_000], &[("xxxx", true)]).await;
        check(b"\xff\n", &[("\u{fffd}", false)]).await;
    }

    #[tokio::test]
    async fn a_stream_without_an_end_is_refused() {
        let mut lines = Lines::new(tokio::io::repeat(b'x'), 4, 200_000);
        assert!(lines.next().await.is_err());
    }
}
