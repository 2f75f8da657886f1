//! The end of an error about a model that does not exist: the name that was probably meant, and the available
//! ones. Pure.

/// The most models that are named.
const MOST_NAMED: usize = 30;
/// The shortest beginning of a name that stands for it.
const BEGINNING: usize = 3;

/// Returns the end of the error. `unknown`: the upstreams whose models are not known.
pub(crate) fn available_models(wrong: &str, known: &[String], unknown: &[String]) -> String {
    let near = nearest_name(wrong, known).map(|near| format!(". Did you mean `{near}`?"));
    let names = match known {
        known if known.len() > MOST_NAMED => format!("{}, …", known[..MOST_NAMED].join(", ")),
        known => known.join(", "),
    };
    let listed = |what: &str, names: &str| (!names.is_empty()).then(|| format!("{what}: {names}"));
    let lists = [listed("Available models", &names), listed("Unknown models", &unknown.join(", "))];
    let lists = lists.into_iter().flatten().collect::<Vec<_>>().join(". ");
    match (near, lists.is_empty()) {
        (Some(near), _) => format!("{near} {lists}"),
        (None, true) => ".".to_owned(),
        (None, false) => format!(". {lists}"),
    }
}

/// Returns the name of a model that was probably meant by a wrong one. People leave out the owner before the
/// slash, and the end of the name.
fn nearest_name<'a>(wrong: &str, known: &'a [String]) -> Option<&'a str> {
    if known.iter().any(|name| name == wrong) {
        return None;
    }
    let folded = |name: &str| name.rsplit('/').next().unwrap_or_default().to_lowercase();
    let wrong = folded(wrong);
    let distance = |name: &str| match folded(name) {
        name if wrong.len() >= BEGINNING && name.starts_with(&wrong) => 0,
        name => strsim::damerau_levenshtein(&wrong, &name),
    };
    let near = known.iter().map(|name| (distance(name), name.as_str()));
    let is_close = |(distance, name): &(usize, &str)| {
        *distance <= (folded(name).len() / 4).max(1) && *distance < wrong.chars().count()
    };
    near.filter(is_close).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_that_was_meant_is_named() {
        let check = |wrong: &str, known: &[&str], expected: Option<&str>| {
            let known: Vec<String> = known.iter().map(ToString::to_string).collect();
            assert_eq!(nearest_name(wrong, &known), expected, "{wrong}");
        };
        let known = ["glm-air", "openai/gpt-oss-120b", "openai/gpt-oss-20b"];
        check("gpt-os-20b", &known, Some("openai/gpt-oss-20b"));
        check("OpenAI/GPT-OSS-120B", &known, Some("openai/gpt-oss-120b"));
        check("gpt-oss", &known, Some("openai/gpt-oss-120b"));
        check("glm-ari", &known, Some("glm-air"));
        for other in ["qwen3", "gpt-4.1", "x", "", "glm-air"] {
            check(other, &known, None);
        }
    }

    #[test]
    fn the_available_models_are_named() {
        let check = |wrong: &str, known: &[&str], unknown: &[&str], expected: &str| {
            let [known, unknown] =
                [known, unknown].map(|names| names.iter().map(ToString::to_string).collect());
            let (known, unknown): (Vec<String>, Vec<String>) = (known, unknown);
            assert_eq!(available_models(wrong, &known, &unknown), expected);
        };
        check("x", &[], &[], ".");
        check("x", &["glm-air", "b"], &[], ". Available models: glm-air, b");
        check(
            "glm",
            &["glm-air"],
            &["those of `b`"],
            ". Did you mean `glm-air`? Available models: glm-air. Unknown models: those of `b`",
        );
        check("x", &[], &["those of `b`"], ". Unknown models: those of `b`");
        let many: Vec<String> = (100..140).map(|number| format!("model-{number}")).collect();
        assert!(available_models("x", &many, &[]).ends_with("model-128, model-129, …"));
    }
}
