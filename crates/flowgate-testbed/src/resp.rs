//! As much of the protocol of Redis as it takes to ask a server who it is.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};

/// How long connecting, and each answer, may take.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(2);

/// What a server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A text, however it was sent.
    Text(String),
    /// A number.
    Number(i64),
    /// Nothing there.
    Nil,
    /// Several answers.
    List(Vec<Reply>),
    /// The server refuses, and says why.
    Refused(String),
}

impl Reply {
    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Number(_) | Self::Nil | Self::List(_) | Self::Refused(_) => None,
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, ANSWER_WAIT_MAX)
            .with_context(|| format!("connecting to {address}"))?;
        stream.set_read_timeout(Some(ANSWER_WAIT_MAX)).context("limiting the wait")?;
        stream.set_nodelay(true).context("sending at once")?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Limits how long the next answers may take.
    #[cfg(test)]
    pub(crate) fn wait_at_most(&self, wait_max: Duration) -> std::io::Result<()> {
        self.0.get_ref().set_read_timeout(Some(wait_max))
    }

    /// Sends one command and reads its answer.
    pub(crate) fn ask(&mut self, words: &[&str]) -> anyhow::Result<Reply> {
        let count = format!("*{}\r\n", words.len());
        let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        let request: String = std::iter::once(count).chain(words).collect();
        self.0.get_mut().write_all(request.as_bytes()).context("sending a command")?;
        read(&mut self.0)
    }
}

fn read(input: &mut impl BufRead) -> anyhow::Result<Reply> {
    let mut line = String::new();
    input.read_line(&mut line).context("reading an answer")?;
    let Some(line) = line.strip_suffix("\r\n") else { bail!("the connection ended") };
    let Some((kind, rest)) = line.split_at_checked(1) else { bail!("an empty answer") };
    Ok(match kind {
        "+" => Reply::Text(rest.to_owned()),
        "-" => Reply::Refused(rest.to_owned()),
        ":" => Reply::Number(rest.parse().context("reading a number")?),
        "$" => match usize::try_from(rest.parse::<i64>().context("reading a length")?) {
            Ok(length) => {
                let mut bytes = vec![0; length + 2];
                input.read_exact(&mut bytes).context("reading a text")?;
                bytes.truncate(length);
                Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
            }
            Err(_) => Reply::Nil,
        },
        "*" => match usize::try_from(rest.parse::<i64>().context("reading a count")?) {
            Ok(count) => {
                let replies = (0..count).map(|_| read(input));
                Reply::List(replies.collect::<anyhow::Result<_>>()?)
            }
            Err(_) => Reply::Nil,
        },
        _ => bail!("an answer of an unknown kind: {line}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sent: &str, expected: Option<&Reply>) {
        assert_eq!(read(&mut sent.as_bytes()).ok().as_ref(), expected, "{sent:?}");
    }

    #[test]
    fn every_kind_of_answer_is_read() {
        let text = |text: &str| Reply::Text(text.into());
        check("+OK\r\n", Some(&text("OK")));
        check("-ERR no\r\n", Some(&Reply::Refused("ERR no".into())));
        check(":-7\r\n", Some(&Reply::Number(-7)));
        check("$4\r\na\r\nb\r\n", Some(&text("a\r\nb")));
        check("$-1\r\n", Some(&Reply::Nil));
        let list = Reply::List(vec![Reply::Number(1), Reply::List(vec![text("")])]);
        check("*2\r\n:1\r\n*1\r\n$0\r\n\r\n", Some(&list));
    }

    #[test]
    fn what_ends_too_early_or_makes_no_sense_is_an_error() {
        for sent in ["", "+OK", "$4\r\nab", "*2\r\n:1\r\n", "?\r\n", "\r\n", "$x\r\n"] {
            check(sent, None);
        }
    }
}
