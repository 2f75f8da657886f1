//! The stage that begins an answer: an agent's run, or a model's reply.

use bytes::Bytes;

use super::arrival::record_refused;
use super::budget::check_budget;
use super::target::{named_agent, unknown_expert};
use crate::agent::{self, RunReply};
use crate::app::App;
use relay::{Origin, ReadRequest};
use wire::ApiError;

/// A turn that is being answered.
pub(crate) enum TurnAnswer {
    /// By an agent's run.
    Run(Box<RunReply>),
    /// By a model.
    Model(ReadRequest),
}

/// Begins to answer a chat request, once its budget was checked.
///
/// # Errors
/// 429 when a budget is spent, 400 when the body is not a chat request, 404 when no upstream serves its
/// model; of an agent also 403 for another site's page.
pub(crate) async fn begin_turn(app: &App, chat: Bytes, origin: Origin) -> Result<TurnAnswer, ApiError> {
    let record = &origin.record;
    let named = named_agent(app, &chat);
    let name = named.as_ref().map_or("", |named| &*named.agent.name);
    let chat = match check_budget(app, record.start(), name) {
        Ok(()) => chat,
        Err(spent) => {
            let is_free = |model: &str| app.usage.is_free(model);
            let free = app.relay.free_model(&chat, &origin, is_free).filter(|_| named.is_none());
            free.ok_or(spent).inspect_err(|_| record_refused(app, record, &chat))?
        }
    };
    if let Some(named) = named {
        // Boxed as it is another path: every request pays for the size of this future.
        let run = Box::pin(agent::begin_run(app.clone(), named, &chat, &origin.headers, record)).await?;
        return Ok(TurnAnswer::Run(Box::new(run)));
    }
    if let Some(error) = unknown_expert(app, &chat, record) {
        return Err(error).inspect_err(|_| record_refused(app, record, &chat));
    }
    let request = app.relay.read(chat, origin).await?;
    request.record().record_request(&request.recorded_facts());
    Ok(TurnAnswer::Model(request))
}
