//! The JSON Schema of flow files, by which editors complete and check them.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::FlowFile;

/// The JSON Schema of a flow file. It knows the form, not the rules of [`FlowFile::validate`].
pub fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<FlowFile>().to_value();
    without_null(&mut schema);
    if let Some(step) = schema.pointer_mut("/properties/steps/additionalProperties") {
        // `done:` with nothing behind it is a step that does nothing.
        *step = json!({ "anyOf": [step.take(), { "type": "null" }] });
    }
    schema
}

/// Takes out `null` where a field may be left out: it may not be empty.
fn without_null(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("default").is_some_and(Value::is_null) {
                map.remove("default");
            }
            if let Some(Value::Array(types)) = map.get_mut("type") {
                types.retain(|kind| kind != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    map.insert("type".to_owned(), only);
                }
            }
            if let Some(Value::Array(kinds)) = map.get_mut("anyOf") {
                kinds.retain(|kind| kind != &json!({ "type": "null" }));
                if let [Value::Object(only)] = kinds.as_slice() {
                    let only = only.clone();
                    map.remove("anyOf");
                    map.extend(only);
                }
            }
            map.values_mut().for_each(without_null);
        }
        Value::Array(items) => items.iter_mut().for_each(without_null),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
