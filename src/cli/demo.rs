//! `respool demo`: a tour of what goes wrong between a client and a model server, and what respool makes of
//! it.
//!
//! Every scene sends one request twice with the same ordinary client: directly to a replay of recorded vLLM
//! replies, and through a complete relay on loopback. `--serve` stays up afterwards, for any client.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use tokio::net::TcpListener;

use super::assembly::app;
use super::runtime::{new_runtime, stop_signals, stop_when_signalled};
use super::say::{columns_of, say, say_in_colours, say_piece_on_stderr};
use super::upstreams::start_replay;
use crate::cli::failure::Failure;
use server::{Stop, build_routes, run_server};
use settings::{Environment, FileText, Flags, Settings, resolve};
use tools::programs::find_in_path;
use tour::{Played, SCENES, Scene};
use upstream::replay::{Replay, SeenRequest};

#[derive(Args, Debug)]
pub(super) struct DemoArgs {
    /// Keep running after the tour, so that any client can talk to the recorded models
    #[arg(long)]
    serve: bool,
    /// Where to listen [default: 127.0.0.1:8003 with --serve, otherwise a free port]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
}

/// The width of the text where it is not for a terminal, and the least one, in columns.
const USUAL_WIDTH: usize = 98;
const LEAST_WIDTH: usize = 50;

pub(super) fn run_demo(arguments: DemoArgs) -> Result<(), Failure> {
    telemetry::metrics::install_recorder();
    new_runtime()?.block_on(run_tour(arguments))
}

/// The tour's relay, and the model server behind it.
struct Stage {
    relay: String,
    server: String,
    replay: Arc<Replay>,
}

async fn run_tour(arguments: DemoArgs) -> Result<(), Failure> {
    let stop = Stop::default();
    let home = tempfile::tempdir().map_err(|error| format!("no temporary directory can be made: {error}"))?;
    let replay = Arc::new(Replay::tour().map_err(|error| error.to_string())?);
    let server = start_replay(Arc::clone(&replay), &stop.abort).await?.to_string();
    let settings = tour_settings(&server, home.path())?;
    let app = app(&settings, &stop.abort).await.map_err(|found| format!("{found:?}"))?;
    let agents = Arc::clone(&app.agents);
    let listener = listen(&arguments).await?;
    let relay = format!("http://{}", listener.local_addr().map_err(|error| error.to_string())?);
    let running = tokio::spawn(run_server(listener, build_routes(app), stop.clone()));
    let stage = Stage { relay, server, replay };

    show_all(&stage).await?;
    if arguments.serve {
        say(&tour::explain_serving(&stage.relay, &stage.server));
        tokio::spawn(stop_when_signalled(stop.clone(), stop_signals()?, || {
            "Ctrl-C again stops at once".to_owned()
        }));
        stop.drain.cancelled().await;
    } else {
        say(&tour::explain_next(find_in_path("respool", &[]).is_ok()));
    }
    stop.drain.cancel();
    stop.abort.cancel();
    running.await.map_err(|error| error.to_string())?;
    agents.wait_for_runs(std::time::Duration::ZERO).await;
    Ok(())
}

/// Returns the tour's configuration, such as anybody could write; all its files are in `home`.
fn tour_settings(server: &str, home: &Path) -> Result<Settings, Failure> {
    let failed = |error: io::Error| format!("{} cannot be written: {error}", home.display());
    let workspace = home.join("workspace");
    std::fs::create_dir(&workspace).map_err(failed)?;
    std::fs::write(workspace.join("a"), "the meeting is at nine\n").map_err(failed)?;
    let text = tour::tour_configuration(server, &workspace, &home.join("state"));
    let file = FileText { path: Path::new("demo.toml"), text: &text };
    Ok(resolve(Some(file), &Environment::new(), &Flags::default())?.settings)
}

async fn listen(arguments: &DemoArgs) -> Result<TcpListener, Failure> {
    let port = if arguments.serve { 8003 } else { 0 };
    let address = arguments.listen.clone().unwrap_or_else(|| format!("127.0.0.1:{port}"));
    let bound = TcpListener::bind(&address).await;
    bound.map_err(|error| {
        format!("cannot listen on {address}: {error}. Choose another address with --listen HOST:PORT").into()
    })
}

async fn show_all(stage: &Stage) -> Result<(), Failure> {
    say(tour::WELCOME);
    for (index, scene) in SCENES.iter().enumerate() {
        if index > 0 && !goes_on().await {
            return Ok(());
        }
        say_in_colours(&show_one(stage, index + 1, scene).await?, tour::colour_of);
    }
    Ok(())
}

async fn show_one(stage: &Stage, number: usize, scene: &Scene) -> Result<String, Failure> {
    let failed = |error: reqwest::Error| format!("scene {number} could not be shown: {error}");
    let direct = tour::play_directly(&stage.server, scene).await.map_err(failed)?;
    let direct_answers = vec![last_answer(stage)?];
    let asked_before = stage.replay.seen_requests().len();
    let through = tour::play_through(&stage.relay, scene).await.map_err(failed)?;
    let answers = stage.replay.seen_requests().split_off(asked_before);
    let answers = answers.into_iter().filter(|request| request.method == "POST");
    let answers: Vec<SeenRequest> = answers.collect();
    let played = Played { direct, through, direct_answers, answers };
    Ok(tour::render_scene(scene, number, &played, terminal_width()))
}

/// Returns the width of the terminal, within what can be read well.
fn terminal_width() -> usize {
    columns_of(io::stdout()).map_or(USUAL_WIDTH, |columns| columns.clamp(LEAST_WIDTH, USUAL_WIDTH))
}

fn last_answer(stage: &Stage) -> Result<SeenRequest, Failure> {
    stage.replay.last_posted().ok_or_else(|| "the recorded server was never asked".into())
}

/// Waits for Enter at a terminal; otherwise the tour just continues.
async fn goes_on() -> bool {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return true;
    }
    // An Enter that was pressed while the scene ran is not an answer.
    let _ = rustix::termios::tcflush(io::stdin(), rustix::termios::QueueSelector::IFlush);
    say_piece_on_stderr("— Enter for the next scene, q and Enter to end — ");
    let read = || io::stdin().lock().lines().next().and_then(Result::ok);
    let line = tokio::task::spawn_blocking(read).await.ok().flatten();
    line.is_some_and(|line| !line.trim().eq_ignore_ascii_case("q"))
}
