//! The only place of xtask that prints: data on stdout, everything else on stderr.

#[expect(clippy::print_stdout, reason = "the one place that writes to stdout")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

#[expect(clippy::print_stderr, reason = "the one place that writes to stderr")]
pub(crate) fn complain(line: &str) {
    eprintln!("{line}");
}
