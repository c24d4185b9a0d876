//! Asking before something is done that cannot be taken back.

use crate::cmd::App;
use crate::failure::Failure;

/// Asks where a person can answer. Whoever cannot, or says no, gets `unasked`.
pub(crate) fn ask(app: &App, question: &str, unasked: &dyn Fn() -> Failure) -> Result<(), Failure> {
    if app.output.json || !console::user_attended() {
        return Err(unasked());
    }
    app.output.note(format_args!("{question} [y/N]"));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|error| unasked().source(error))?;
    if matches!(line.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(unasked()) }
}
