//! Server-sent events, as they come out of a stream of bytes.

/// A message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) event: String,
    pub(crate) data: String,
}

/// What has come of a message that is not whole yet.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    rest: Vec<u8>,
    message: Message,
}

impl Parser {
    /// The messages that are whole with these bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<Message> {
        self.rest.extend_from_slice(bytes);
        let mut whole = Vec::new();
        let mut begin = 0;
        while let Some(end) = self.rest[begin..].iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&self.rest[begin..begin + end]).into_owned();
            begin += end + 1;
            whole.extend(self.line(line.trim_end_matches('\r')));
        }
        self.rest.drain(..begin);
        whole
    }

    /// Reads a line; the message that it ends.
    fn line(&mut self, line: &str) -> Option<Message> {
        if line.is_empty() {
            let message = std::mem::take(&mut self.message);
            return Some(message).filter(|message| !message.data.is_empty());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.message.event),
            "data" => {
                if !self.message.data.is_empty() {
                    self.message.data.push('\n');
                }
                self.message.data.push_str(value);
            }
            // Comments, numbers and what others may send.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_whole_wherever_its_bytes_were_cut() {
        let text = "retry: 2000\n\n: alive\n\nid: 3\nevent: event\ndata: {\"a\":\"ä\"}\n\nevent: end\n\
                    data: 1\ndata: 2\n\nevent: half";
        let message = |event: &str, data: &str| Message { event: event.into(), data: data.into() };
        let expected = [message("event", "{\"a\":\"ä\"}"), message("end", "1\n2")];
        for size in [1, 2, 7, text.len()] {
            let mut parser = Parser::default();
            let read: Vec<Message> =
                text.as_bytes().chunks(size).flat_map(|part| parser.push(part)).collect();
            assert_eq!(read, expected, "{size}");
        }
    }
}
