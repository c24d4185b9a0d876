//! A private Mosquitto, a broker of MQTT.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use crate::process::{self, Signal};
use crate::site::{Endings, Site};
use crate::{PrivateServer, tool};

const ENDINGS: Endings = Endings { stop: Signal::Terminate, kill: Signal::Kill };

/// A Mosquitto of our own: unless it is told otherwise it lets anybody in, drops no message for want
/// of room, and writes its sessions and messages to its file after every change.
///
/// It answers a publisher a moment before it writes, so a kill may cost it what it answered last.
#[derive(Debug)]
pub struct Mosquitto {
    site: Site,
    port: u16,
    terms: BrokerTerms,
}

/// What a broker asks of its clients.
#[derive(Clone, Debug, Default)]
pub struct BrokerTerms {
    /// The one user that it lets in, and their password; anybody if there is none.
    pub user: Option<(&'static str, &'static str)>,
    /// Lines of its access list; everything is allowed if there are none.
    pub access: &'static [&'static str],
    /// Lines of its settings.
    pub settings: &'static [&'static str],
}

impl Mosquitto {
    /// Starts a broker, and waits until it is ready.
    pub fn start() -> anyhow::Result<Self> {
        Self::start_with(BrokerTerms::default())
    }

    /// Starts a broker that asks something of its clients.
    pub fn start_with(terms: BrokerTerms) -> anyhow::Result<Self> {
        let mut site = Site::new("mosquitto", ENDINGS)?;
        let [port] = site
            .start_on_free_ports(
                |site, [port]| command(site, port, &terms),
                |site, [port]| is_ours_and_ready(site, port),
            )
            .context("starting mosquitto")?;
        Ok(Self { site, port, terms })
    }

    /// Where the broker listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }
}

impl PrivateServer for Mosquitto {
    fn url(&self) -> String {
        format!("mqtt://{}", self.address())
    }

    fn pids(&self) -> Vec<u32> {
        self.site.pids()
    }

    fn cpu_time(&self) -> Duration {
        self.site.cpu_time()
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        self.site.kill()
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.site.stop()
    }

    fn pause(&mut self) -> anyhow::Result<()> {
        self.site.pause()
    }

    fn resume(&mut self) -> anyhow::Result<()> {
        self.site.resume()
    }

    fn restart(&mut self) -> anyhow::Result<()> {
        self.stop()?;
        let (port, terms) = (self.port, self.terms.clone());
        self.site
            .start_again(|site| command(site, port, &terms), |site| is_ours_and_ready(site, port))
            .with_context(|| format!("starting mosquitto again on port {port}"))
    }
}

fn command(site: &Site, port: u16, terms: &BrokerTerms) -> anyhow::Result<Command> {
    let folder = site.folder();
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {name} for mosquitto"))?;
        anyhow::Ok(path)
    };
    let mut lines = vec![settings_for(port, &folder.display().to_string())];
    match terms.user {
        None => lines.push("allow_anonymous true".to_owned()),
        Some((user, password)) => {
            let passwords = write("passwords", format!("{user}:{password}\n"))?;
            hash(&passwords)?;
            lines.push(format!("password_file {}", passwords.display()));
        }
    }
    if !terms.access.is_empty() {
        let access = write("access", terms.access.join("\n") + "\n")?;
        lines.push(format!("acl_file {}", access.display()));
    }
    lines.extend(terms.settings.iter().copied().map(ToOwned::to_owned));
    let settings = write("mosquitto.conf", lines.join("\n") + "\n")?;
    let mut command = Command::new(tool::require("mosquitto")?);
    command.arg("-c").arg(settings).current_dir(folder);
    Ok(command)
}

/// Replaces the passwords in a file by their hashes, as the broker wants them.
fn hash(passwords: &Path) -> anyhow::Result<()> {
    let tool = tool::require("mosquitto_passwd")?;
    let hashed = Command::new(tool).arg("-U").arg(passwords).output();
    let hashed = hashed.context("starting mosquitto_passwd")?;
    anyhow::ensure!(hashed.status.success(), "mosquitto_passwd failed: {hashed:?}");
    Ok(())
}

/// Of `user`: who starts it as root must say so, or it becomes a user who may not write here.
fn settings_for(port: u16, folder: &str) -> String {
    format!(
        "listener {port} 127.0.0.1
user root
persistence true
persistence_location {folder}/
autosave_on_changes true
autosave_interval 1
max_queued_messages 0
max_queued_bytes 0
log_dest stderr
"
    )
}

/// Whether the process of this site listens on this port, and not somebody else.
///
/// A broker does not tell its process id, but the kernel tells who listens.
fn is_ours_and_ready(site: &Site, port: u16) -> bool {
    site.pid().is_some_and(|pid| process::listens(pid, port))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    /// Connects with MQTT 5 and a session that is kept, and says whether there was one before.
    fn session_present(broker: &Mosquitto) -> anyhow::Result<bool> {
        let mut connection = TcpStream::connect(broker.address())?;
        connection.set_read_timeout(Some(Duration::from_millis(500)))?;
        // Keep alive 60 s; the property 0x11 is the expiry of the session, 3,600 s.
        let mut connect = vec![0x10, 0, 0, 4, b'M', b'Q', b'T', b'T', 5, 0, 0, 60];
        connect.extend([5, 0x11, 0, 0, 0x0e, 0x10, 0, 4, b'k', b'e', b'p', b't']);
        connect[1] = u8::try_from(connect.len() - 2)?;
        connection.write_all(&connect)?;
        let mut answer = [0; 4];
        connection.read_exact(&mut answer)?;
        anyhow::ensure!((answer[0], answer[3]) == (0x20, 0), "{answer:?}");
        Ok(answer[2] == 1)
    }

    #[test]
    fn a_session_outlives_a_kill_and_a_pause() {
        let mut broker = Mosquitto::start().unwrap();
        let url = broker.url();
        assert!(!session_present(&broker).unwrap());
        crate::site::wait_until("the session is written", || {
            std::fs::metadata(broker.site.folder().join("mosquitto.db")).is_ok()
        })
        .unwrap();
        broker.kill().unwrap();
        session_present(&broker).unwrap_err();
        broker.restart().unwrap();
        assert!(session_present(&broker).unwrap());
        broker.pause().unwrap();
        session_present(&broker).unwrap_err();
        broker.resume().unwrap();
        assert!(session_present(&broker).unwrap());
        assert_eq!(broker.url(), url);
    }

    #[test]
    fn a_broker_of_somebody_else_does_not_pass_for_ours() {
        let stranger = Mosquitto::start().unwrap();
        let ours = Mosquitto::start().unwrap();
        assert!(is_ours_and_ready(&ours.site, ours.port));
        assert!(!is_ours_and_ready(&ours.site, stranger.port));
    }
}
