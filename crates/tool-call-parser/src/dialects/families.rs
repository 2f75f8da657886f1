//! The model families for which other projects have parsers, the rows here that read them, and the cases that
//! show it: a table of the reference page. Facts are from the newest lists of parsers of vLLM, `SGLang`,
//! llama.cpp and SMG.

/// One family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    /// The projects with a parser for it, and the parser's name there.
    pub(super) parsers: &'static str,
    /// The rows that read it.
    pub(super) dialects: &'static [&'static str],
    /// Cases in `cases/` that show it.
    pub(super) cases: &'static [&'static str],
}

const fn family(
    name: &'static str,
    parsers: &'static str,
    dialects: &'static [&'static str],
    cases: &'static [&'static str],
) -> Family {
    Family { name, parsers, dialects, cases }
}

pub(super) const FAMILIES: &[Family] = &[
    family(
        "gpt-oss",
        "vLLM `openai`, SGLang `gpt-oss`, llama.cpp `gpt-oss`",
        &["harmony", "harmony_recipient", "harmony_text", "harmony_glued"],
        &["own-oss-01", "own-oss-20"],
    ),
    family(
        "Muse Glimmer",
        "vLLM `muse_glimmer`, SGLang `muse_glimmer`, llama.cpp `muse-glimmer`, SMG `muse_glimmer`",
        &["harmony", "harmony_recipient"],
        &["own-mus-01", "own-mus-02", "own-mus-03", "own-mus-04"],
    ),
    family(
        "Hermes, Qwen 2.5 and 3, Reka, Jamba",
        "vLLM `hermes`, `jamba`, SGLang `qwen`, `qwen25`, `hermes`, llama.cpp, SMG `qwen`",
        &["hermes"],
        &["own-her-09", "own-frm-03"],
    ),
    family(
        "Qwen3-Coder, Qwen3.5, MiMo, Nemotron 3, Step 3.5",
        "vLLM `qwen3_coder`, `qwen3_xml`, `mimo`, `step3p5`, SGLang `qwen3_coder`, `mimo`, `step3p5`, llama.cpp `qwen3-coder`, SMG `qwen_xml`, `qwen_coder`, `nemotron`",
        &["qwen_xml"],
        &["own-arg-01"],
    ),
    family("Seed-OSS", "vLLM `seed_oss`, llama.cpp", &["qwen_xml"], &["own-qwc-01"]),
    family("MiniMax M1", "vLLM `minimax`", &["hermes"], &["own-mmx-10"]),
    family(
        "MiniMax M2",
        "vLLM `minimax_m2`, SGLang `minimax-m2`, llama.cpp, SMG `minimax_m2`",
        &["invoke"],
        &["own-arg-07"],
    ),
    family(
        "MiniMax M3",
        "vLLM `minimax_m3`, SGLang `minimax-m3`, llama.cpp `minimax-m3`, SMG `minimax_m3`",
        &["minimax_m3"],
        &["own-mm3-01", "own-mm3-02", "own-mm3-03"],
    ),
    family(
        "DeepSeek V3, R1, V3.1",
        "vLLM `deepseek_v3`, `deepseek_v31`, SGLang `deepseekv3`, `deepseekv31`, llama.cpp, SMG `deepseek`, `deepseek31`",
        &["deepseek"],
        &["own-dps-11"],
    ),
    family(
        "DeepSeek V3.2, V4",
        "vLLM `deepseek_v32`, `deepseek_v4`, SGLang `deepseekv32`, `deepseekv4`, llama.cpp `deepseek`, SMG `deepseek32`, `deepseek_v4`",
        &["invoke"],
        &["own-dps-10"],
    ),
    family("Step-3", "vLLM `step3`, SGLang `step3`, SMG `step3`", &["invoke"], &["own-st3-01", "own-st3-02"]),
    family(
        "GLM-4.5 to 5, Poolside",
        "vLLM `glm45`, `glm47`, `poolside_v1`, SGLang `glm`, `glm45`, `glm47`, `poolside_v1`, llama.cpp, SMG `glm45_moe`, `glm47_moe`",
        &["glm"],
        &["own-arg-02", "own-glm-05", "own-opn-04"],
    ),
    family(
        "Hunyuan (Hy3)",
        "vLLM `hy_v3`, SGLang `hunyuan`",
        &["hunyuan"],
        &["own-hyv-01", "own-hyv-02", "own-hyv-03"],
    ),
    family("Hunyuan A13B", "vLLM `hunyuan_a13b`", &["hermes"], &["own-frm-02"]),
    family(
        "Kimi K2",
        "vLLM `kimi_k2`, SGLang `kimi_k2`, llama.cpp `kimi-k2`, SMG `kimik2`",
        &["kimi"],
        &["own-kim-01"],
    ),
    family(
        "Kimi K3",
        "vLLM `kimi_k3`, SGLang `kimi_k3`, llama.cpp `kimi-k3`, SMG `kimi_k3`",
        &["kimi_k3"],
        &["own-kk3-01", "own-kk3-02", "own-kk3-03"],
    ),
    family(
        "Inkling",
        "vLLM `inkling`, SGLang `inkling`, llama.cpp `inkling`, SMG `inkling`",
        &["inkling"],
        &["own-ink-01", "own-ink-02"],
    ),
    family(
        "MiniCPM5",
        "vLLM `minicpm5`, SGLang `minicpm5`, llama.cpp `minicpm5`",
        &["minicpm5"],
        &["own-mcp-01", "own-mcp-02", "own-mcp-03", "own-mcp-04"],
    ),
    family(
        "Gemma 4",
        "vLLM `gemma4`, SGLang `gemma4`, llama.cpp `gemma4`",
        &["gemma", "gemma_stripped"],
        &[],
    ),
    family("FunctionGemma", "vLLM `functiongemma`", &["gemma"], &["own-fgm-01"]),
    family(
        "GigaChat 3",
        "vLLM `gigachat3`, SGLang `gigachat3`, llama.cpp `gigachat-v3`",
        &["gigachat", "gigachat_role"],
        &["own-gig-01", "own-gig-02", "own-gig-03"],
    ),
    family(
        "Mistral",
        "vLLM `mistral`, SGLang `mistral`, llama.cpp `ministral3`, SMG `mistral`",
        &["mistral", "bare_name"],
        &["own-mis-01"],
    ),
    family(
        "Llama 3 and 4",
        "vLLM `llama3_json`, `llama4_json`, `llama4_pythonic`, `pythonic`, SGLang `llama3`, `pythonic`, llama.cpp, SMG `llama`, `pythonic`",
        &["llama", "pythonic", "bare_json"],
        &["own-lla-01", "own-opn-02"],
    ),
    family(
        "LFM2, Olmo 3",
        "vLLM `lfm2`, `olmo3`, SGLang `lfm2`, llama.cpp `lfm2`",
        &["pythonic_tags", "pythonic"],
        &["own-lfm-01"],
    ),
    family(
        "Command R7B, Command A",
        "vLLM `cohere_command3`, `cohere_command4`, SGLang `cohere_command4`, llama.cpp `cohere2moe`, SMG `cohere`",
        &["cohere", "answer_frames"],
        &["own-frm-01"],
    ),
    family(
        "Granite",
        "vLLM `granite`, `granite4`, `granite-20b-fc`, llama.cpp",
        &["hermes"],
        &["own-gra-01"],
    ),
    family(
        "InternLM, LongCat, xLAM, Phi-4-mini, Apertus",
        "vLLM `internlm`, `longcat`, `xlam`, `phi4_mini_json`, `apertus`, SGLang `interns1`, llama.cpp",
        &["hermes", "bare_json", "phi", "apertus"],
        &["own-int-01", "own-lon-01", "own-xla-01", "own-phi-01"],
    ),
    family("ERNIE 4.5", "vLLM `ernie45`", &["hermes"], &["own-ern-01", "own-ern-02"]),
    family(
        "Solar Open 2",
        "vLLM `solar_open2`",
        &["solar"],
        &["own-sol-01", "own-sol-02", "own-sol-03", "own-sol-04", "own-sol-06", "own-cut-sol"],
    ),
    family("Solar Open 1", "llama.cpp", &["solar_1"], &["own-sol-05"]),
    family(
        "GigaChat 3.5",
        "vLLM `gigachat35`, SGLang `gigachat35`",
        &["invoke"],
        &["own-gig-04", "own-cut-gig"],
    ),
    family(
        "Hunyuan 4, and Hunyuan with suffixed tags",
        "vLLM `hy_v4`, llama.cpp, SMG `hy_v4`",
        &["hunyuan_suffixed", "hunyuan"],
        &["own-hy4-01", "own-hy4-02", "own-hy4-03", "own-hy4-04", "own-cut-hy4"],
    ),
    family("dots", "vLLM `dots`, SGLang `dots`", &["invoke", "hermes"], &["own-dot-01", "own-dot-02"]),
    family(
        "Ling 3, Spark 2.5 and 3, HyperCLOVA X SEED Think",
        "vLLM `ling3`, `spark3`, `hyperclovax_seed_think`, SGLang `ling3`, `spark25`, llama.cpp `ling3`",
        &["glm"],
        &["own-lin-01", "own-hcx-01"],
    ),
    family("IQuest Q1", "SGLang `iquest_q1`", &["iquest"], &["own-iqu-01", "own-cut-iqu"]),
    family("IQuest Coder, BerryLM", "vLLM `iquest_coder`, SGLang `berrylm`", &["qwen_xml"], &["own-iqu-02"]),
    family("Trinity", "SGLang `trinity`", &["hermes"], &["own-tri-01"]),
    family("GLM-5.3 Flash", "SGLang `glm53_flash`", &["named_tag", "glm"], &["own-g53-01", "own-g53-02"]),
    family("DeepSeek V4.1", "vLLM `deepseek_v41`, SGLang `deepseekv41`", &["invoke"], &["own-d41-01"]),
    family(
        "K2 Horizon",
        "vLLM `k2_horizon`, SGLang `k2_horizon`, llama.cpp `k2-horizon`",
        &["k2_horizon"],
        &["own-k2h-01", "own-k2h-02", "own-k2h-03", "own-cut-k2h"],
    ),
    family("PLaMo 3", "vLLM `plamo3`", &["plamo"], &["own-pla-01", "own-cut-pla"]),
    family("CWM", "vLLM `cwm`", &["cwm"], &["own-cwm-01", "own-cwm-02", "own-cwm-03"]),
    family("Step-Audio 2", "vLLM `step_audio_2`", &["named_tag"], &["own-sta-01"]),
    family("openPangu 2", "vLLM `openpangu_v2`", &["pythonic_tags"], &["own-pan-01"]),
    family(
        "Beam (Reflection)",
        "vLLM `beam`, SGLang `beam`",
        &["beam", "harmony_recipient"],
        &["own-bea-01", "own-bea-02"],
    ),
    family("Muse Spark 1.x", "vLLM `muse`, `musespark1x`, SGLang `muse`", &["harmony"], &["own-msp-01"]),
    family("llm-jp 4.1", "llama.cpp `llm-jp-harmony`", &["harmony"], &["own-ljp-01"]),
    family(
        "Functionary v3.2",
        "llama.cpp `functionary-v3-2`",
        &["functionary", "bare_name"],
        &["own-fun-01"],
    ),
    family("MiroThinker", "llama.cpp (a template)", &["mcp_tag"], &["own-mir-01"]),
    family("Sarashina", "SMG `sarashina`", &["hermes", "bare_json"], &["own-sar-01"]),
    family("Step 5, Nanbeige", "vLLM `step5`, SGLang `nanbeige`", &["qwen_xml"], &["own-ste-01"]),
    family("Qwen 3 (JSON)", "vLLM `qwen3_json`, SGLang `qwen25`, SMG `qwen`", &["hermes"], &["own-qwj-01"]),
    family(
        "Granite (Python calls)",
        "vLLM `granite_pythonic` (a pull request)",
        &["pythonic"],
        &["own-gpy-01"],
    ),
    family("Nemotron (JSON)", "vLLM `nemotron_json` (a pull request)", &["hermes"], &["own-nem-01"]),
    family(
        "MiniCPM-V, MiMo V2 Flash",
        "vLLM `minicpmv`, `mimov2_flash` (pull requests)",
        &["hermes", "qwen_xml"],
        &["own-mcv-01"],
    ),
    family("RWKV-7", "vLLM `rwkv` (a pull request)", &["headed", "fenced"], &["own-rwk-01"]),
    family("Apriel 1.5 and 1.6", "llama.cpp", &["hermes", "bare_think"], &["own-apr-01"]),
    family(
        "Apertus 2509",
        "vLLM `apertus`, SGLang `apertus2509`, llama.cpp",
        &["apertus", "think_tokens"],
        &["own-ape-01"],
    ),
    family("Models without marks of their own", "SMG `json`", &["bare_json", "fenced"], &["own-bar-01"]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialects::TABLE;

    /// The parsers of the newest releases (vLLM 0.33.0, `SGLang` 0.5.23, SMG and llama.cpp of autumn 2026),
    /// without those that read Hugging Face's `response_template` or no calls at all.
    const RELEASED: [(&str, &str); 4] = [
        (
            "vLLM",
            "apertus beam cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 \
             dots ernie45 functiongemma gemma4 gigachat3 glm45 glm47 granite granite-20b-fc granite4 hermes hunyuan_a13b \
             hy_v3 hy_v4 inkling internlm jamba k2_horizon kimi_k2 kimi_k3 lfm2 ling3 llama3_json llama4_json \
             llama4_pythonic longcat mimo minicpm5 minimax_m2 minimax_m3 mistral muse muse_glimmer musespark1x olmo3 \
             openai phi4_mini_json plamo3 poolside_v1 pythonic qwen3_coder qwen3_json qwen3_xml seed_oss step3 step3p5 \
             step5 xlam",
        ),
        (
            "SGLang",
            "apertus2509 beam cohere_command4 deepseekv3 deepseekv31 deepseekv32 deepseekv4 deepseekv41 dots gemma4 \
             gigachat3 gigachat35 glm glm45 glm47 gpt-oss hermes hunyuan inkling interns1 iquest_q1 k2_horizon kimi_k2 \
             kimi_k3 lfm2 ling3 llama3 mimo minicpm5 minimax-m2 minimax-m3 mistral muse nanbeige poolside_v1 pythonic \
             qwen qwen25 qwen3_coder spark25 step3 step3p5 trinity",
        ),
        (
            "SMG",
            "cohere deepseek deepseek31 deepseek32 deepseek_v4 glm45_moe glm47_moe hy_v4 inkling json kimi_k3 kimik2 \
             llama minimax_m2 minimax_m3 mistral muse_glimmer nemotron pythonic qwen qwen_coder qwen_xml sarashina step3",
        ),
        (
            "llama.cpp",
            "cohere2moe deepseek functionary-v3-2 gemma4 gigachat-v3 gpt-oss inkling k2-horizon kimi-k2 kimi-k3 lfm2 \
             ling3 llm-jp-harmony minicpm5 minimax-m3 ministral3 muse-glimmer qwen3-coder",
        ),
    ];

    /// Returns true if a family lists this parser of this project.
    fn is_listed(project: &str, parser: &str) -> bool {
        FAMILIES.iter().any(|family| {
            let mut of_project = "";
            family.parsers.split(", ").any(|entry| {
                let (words, name) = entry.split_once('`').unwrap_or((entry, ""));
                if !words.trim().is_empty() {
                    of_project = words.split_whitespace().next().unwrap();
                }
                of_project == project && name.split('`').next() == Some(parser)
            })
        })
    }

    #[test]
    fn every_parser_of_the_newest_releases_has_a_row() {
        for (project, parsers) in RELEASED {
            for parser in parsers.split_whitespace() {
                assert!(is_listed(project, parser), "{project} {parser}");
            }
        }
    }

    #[test]
    fn every_row_names_dialects_and_cases_that_exist() {
        let cases = include_str!("../../cases/toolcall-cases-own.jsonl");
        for family in FAMILIES {
            for dialect in family.dialects {
                assert!(TABLE.iter().any(|row| row.name == *dialect), "{}: {dialect}", family.name);
            }
            for case in family.cases {
                assert!(cases.contains(&format!("\"id\": \"{case}\"")), "{}: {case}", family.name);
            }
        }
    }
}
