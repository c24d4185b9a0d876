//! A client of one connection, as plain as can be: what is measured is the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(30);

pub(super) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(super) fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub(super) fn get(&mut self, path: &str) -> anyhow::Result<(u16, Vec<u8>)> {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
    }

    pub(super) fn post(&mut self, path: &str, body: &str) -> anyhow::Result<(u16, Vec<u8>)> {
        let length = body.len();
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        ))
    }

    fn send(&mut self, request: &str) -> anyhow::Result<(u16, Vec<u8>)> {
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("`{line}` is not the head of an answer"))?;
        let mut length = None;
        loop {
            let mut header = String::new();
            if self.stream.read_line(&mut header)? == 0 {
                bail!("the answer was cut short");
            }
            if header.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = header.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse::<usize>().ok();
            }
        }
        let mut body = vec![0; length.context("the answer does not say its length")?];
        self.stream.read_exact(&mut body)?;
        Ok((status, body))
    }
}

/// Of times in any order, the one that `percent` of them do not exceed.
pub(super) fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    let at = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(at).copied().unwrap_or_default()
}

pub(super) fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_times() {
        let mut times: Vec<Duration> = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut times, 50), Duration::from_millis(101));
        assert_eq!(percentile(&mut times, 99), Duration::from_millis(199));
        assert_eq!(percentile(&mut [], 99), Duration::ZERO);
    }
}
