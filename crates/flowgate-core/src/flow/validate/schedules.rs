//! Rules about the schedules of a flow.

use super::Problems;
use crate::flow::input::compile_schema;
use crate::flow::{FlowFile, Path};
use crate::limits::SCHEDULES_MAX;

/// Checks the schedules, and their inputs against the flow's schema.
pub(super) fn validate(file: &FlowFile, problems: &mut Problems) {
    let path = Path::default().key("schedules");
    if file.schedules.len() > SCHEDULES_MAX {
        problems.add(
            &path,
            format!("{} schedules are over the limit of {SCHEDULES_MAX}", file.schedules.len()),
            "write lists into fewer expressions, or add some with `flowgate schedules add`",
        );
        return;
    }
    // What is wrong with the schema itself is told where it stands.
    let schema = file.input.as_ref().filter(|_| problems.0.is_empty());
    let schema = schema.and_then(|schema| compile_schema(schema).ok());
    for (name, schedule) in &file.schedules {
        let path = path.key(name);
        problems.name(&path, "schedule", name);
        problems.0.extend(schedule.validate_at(&path));
        let input = schedule.input.as_ref().unwrap_or(&serde_json::Value::Null);
        if let Some(error) = schema.as_ref().and_then(|schema| schema.validate(input).err()) {
            let place = error.instance_path().to_string();
            let place = if place.is_empty() { "it".to_owned() } else { format!("`{place}`") };
            let path = if schedule.input.is_some() { path.key("input") } else { path };
            problems.add(
                &path,
                format!("the input does not meet the flow's schema: {place}: {error}"),
                "give the schedule an `input` as the flow's own `input` describes it",
            );
        }
    }
}
