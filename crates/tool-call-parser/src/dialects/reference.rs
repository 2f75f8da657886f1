//! Generates the reference page of all dialects, and the table of the README.

use super::{Dialect, TABLE, families};
use crate::{repairs, templates};

/// Writes the reference page of all dialects, in Markdown. A test compares it with `docs/dialects.md`.
fn reference() -> String {
    use std::fmt::Write as _;
    let mut page = String::from(
        "# Dialects\n\nEvery way of writing a tool call that respool reads, in the order in which they are tried. \
         Generated from\n`crates/tool-call-parser/src/dialects/`; run `UPDATE_DOCS=1 cargo test -p tool-call-parser --lib` after a change.\n\n\
         Each dialect with calls has a writer in the tests: random tools and arguments written in it come back equal, 100 \
         times\nin an ordinary test run, 2,000 times in `just nightly`. `just fuzz TARGET` fuzzes the parser; what fuzzing \
         found is\nreplayed by `cargo test` (`crates/tool-call-parser/fuzz/corpus/`).\n",
    );
    for dialect in TABLE {
        let Dialect { name, models, grammar, example, .. } = dialect;
        let _ = write!(page, "\n## {name}\n\n{models}\n\n{grammar}\n");
        if !example.is_empty() {
            let _ = write!(page, "\n````text\n{example}\n````\n");
        }
    }
    page.push_str(
        "\n# Repairs\n\nWhat reading a call may change, by the name in logs and metrics. A repair changes the form of a call, never what \
         the\ntool would do: what would need more is refused, and the model is asked again.\n\n\
         | repair | what it does | when it is safe |\n|---|---|---|\n",
    );
    for row in repairs::TABLE {
        let _ = writeln!(page, "| `{}` | {} | {} |", row.name, row.change, row.safe);
    }
    page.push_str(
        "\n# Families\n\nWhich model families others parse, the rows above that read them here, and cases in `crates/tool-call-parser/cases/` that show it. \
         Other\nparsers are told the family; respool finds it by itself, and `[models.\"X\"] dialects` or the model's name only \
         says what is\ntried first.\n\n| family | parsed by | read here by | cases |\n|---|---|---|---|\n",
    );
    for family in families::FAMILIES {
        let list =
            |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let (dialects, cases) = (list(family.dialects), list(family.cases));
        let _ = writeln!(page, "| {} | {} | {dialects} | {cases} |", family.name, family.parsers);
    }
    page.push_str(
        "\nvLLM's `hf`, and `response_template` of SGLang and SMG, follow a template of Hugging Face that names the marks; so does\n\
         respool, with `[models.\"X\"] response_template`. SMG's `passthrough` and llama.cpp's `translate-gemma` read no calls.\n",
    );
    page.push_str(
        "\n# Marks of templates\n\nWhat an agent or a chat breaks in the words of tools and servers before the model reads them \
         ([security.md](security.md)):\nbeside these the marks that open the dialects above, those of reasoning, and all \
         tokens of the forms `<|x|>`, `<｜x｜>`, `<|x>`\nand `<x|>`.\n\n| families | marks |\n|---|---|\n",
    );
    page.push_str(&templates::reference_rows());
    page.push_str(ARGUED);
    page
}

/// Writes a table of the dialects with the models that write them, in Markdown. A test compares it with the
/// crate's README.
fn summary() -> String {
    let rows = TABLE.iter().map(|dialect| {
        let models = dialect.models.replace('|', "\\|");
        format!("| `{}` | {models} |\n", dialect.name)
    });
    format!("| dialect | written by |\n|---|---|\n{}", rows.collect::<String>())
}

/// The decisions in which respool differs from other parsers, with the reasons.
const ARGUED: &str = "\n# Decided otherwise\n\n\
- **A name that is not declared is not guessed.** vLLM's `minicpm5` turns `get_details_by_phone` into a declared\n  \
`get_customer_by_phone`, and `get_line_details{customer_id, line_id}` into `get_details_by_id{id}`. That is another call than the\n  \
model wrote; here it stays text, and the model is asked again. Only the names that other assistants give the same\n  \
tool are known (the repair `name`).\n\
- **MiniMax M3's tags in a value that may be text or an object** (`oneOf: [string, object]`) are the object that the family writes\n  \
with them, as SGLang reads it. llama.cpp takes the markup itself for the text, tokens and all.\n\
- **A call without its closing tag** in a form of key and value tags (GLM) counts only when every declared argument is there: an\n  \
optional one may be missing with the tag. SGLang refuses it always, vLLM takes it in streams.\n\
- **An unclosed call that the model insists on is shown as text**, so that nothing it wrote is lost; before, it is asked again.\n\
- **Calls in reasoning** that the model ended itself are none. When a turn holds nothing but reasoning that it did not end, or\n  \
that the server split off (vllm#39056), a call at its very end is one. SGLang's `trinity` takes the tags away and reads calls in\n  \
reasoning like others; here an agent's `read_first = \"reasoning\"` does.\n\
- **K2 Horizon's group of calls** gives its valid calls when one of them is broken; vLLM shows the whole group as text.\n\
- **ERNIE's `<response>`** around an answer stays in the text: any other model may answer in XML.\n";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Compares a generated page with its file, or writes it.
    fn check_page(path: &str, page: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, page).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == page,
            "{} is stale: UPDATE_DOCS=1 cargo test -p tool-call-parser --lib",
            path.display()
        );
    }

    #[test]
    fn the_reference_page_is_up_to_date() {
        check_page("../../docs/dialects.md", &reference());
    }

    #[test]
    fn the_readme_lists_every_dialect() {
        let page = include_str!("../../README.md");
        let (head, rest) = page.split_once("--lib` -->\n").unwrap();
        let (_, tail) = rest.split_once("<!-- end of dialects -->").unwrap();
        check_page("README.md", &format!("{head}--lib` -->\n{}<!-- end of dialects -->{tail}", summary()));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = TABLE.iter().map(|dialect| dialect.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
    }
}
