//! The command line of ekbatan, for operators:
//!
//! ```sh
//! ekbatan --config config/wallet.yml events status
//! ekbatan --config config/wallet.yml events replay --handler mail.send
//! ekbatan --config config/wallet.yml events replay --handler mail.send --yes 12 --who alice --why "the server is back"
//! ekbatan --config config/wallet.yml jobs run bank.close_days --who alice --why "the bank closes early today"
//! ```
//!
//! It reads the same file as the application and needs none of its types. What it shows needs only
//! the right to read the tables of the framework. It ends with status 0 if it did what was asked, 1
//! if that failed, and 2 if it was not asked properly.

mod act;
mod answer;
mod args;
mod failure;
mod filter;
mod jobs;
mod known;
mod remote_calls;
mod show;
mod target;

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::Parser;

use answer::Answer;
use args::{Arguments, Command, EventCommand};
use failure::Failure;
use target::{Scope, Target, has_eventlogs};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Nothing was parsed, so look for the option itself.
        Err(error)
            if error.use_stderr() && std::env::args_os().any(|of| of == OsStr::new("--json")) =>
        {
            let message = error.to_string();
            return complain(Failure::usage(message.trim_start_matches("error: ").trim()), true);
        }
        Err(error) => error.exit(),
    };
    let as_json = arguments.json;
    let printed = match run(arguments).await {
        Ok(answer) => answer.print(as_json).map_err(Failure::from),
        Err(failure) => Err(failure),
    };
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => complain(failure, as_json),
    }
}

fn complain(failure: Failure, as_json: bool) -> ExitCode {
    let status = failure.status();
    failure.print(as_json);
    ExitCode::from(status)
}

async fn run(arguments: Arguments) -> Result<Answer, Failure> {
    let Arguments { config, database, eventlog, shard, json, command } = arguments;
    let scope = match (&command, shard) {
        (Command::Events { .. }, None) => Scope::All,
        (Command::Events { .. }, Some(named)) => Scope::Named(named),
        (Command::Jobs { .. }, None) => Scope::Default,
        (Command::Jobs { .. }, Some(_)) => {
            return Err(Failure::usage("all jobs are on the default shard; leave out --shard"));
        }
    };
    let may_be_elsewhere = eventlog.is_none() && database.as_deref().is_some_and(has_eventlogs);
    let target = Target::open(config, database, eventlog, scope).await?;
    let answered = match command {
        Command::Events { command } => events(&target, command, json).await,
        Command::Jobs { command } => jobs::run(&target, command).await,
    };
    target.close().await;
    answered.map_err(
        |failure| {
            if may_be_elsewhere { failure.naming_the_eventlog() } else { failure }
        },
    )
}

async fn events(target: &Target, command: EventCommand, as_json: bool) -> Result<Answer, Failure> {
    match command {
        EventCommand::Status => show::status(target, as_json).await,
        EventCommand::Parked { most } => show::parked(target, most).await,
        EventCommand::Failing { most } => show::failing(target, most).await,
        EventCommand::DeadLetters { most } => show::dead_letters(target, most).await,
        EventCommand::InDoubt { most } => remote_calls::in_doubt(target, most).await,
        EventCommand::Happened { key, outcome, operator } => {
            remote_calls::happened(target, key, &outcome, &operator.given()?).await
        }
        EventCommand::DidNotHappen { key, operator } => {
            remote_calls::did_not_happen(target, key, &operator.given()?).await
        }
        EventCommand::Log { most } => show::log(target, most).await,
        EventCommand::Look { id } => show::look(target, id).await,
        EventCommand::Retry { id, operator } => act::retry(target, id, &operator.given()?).await,
        EventCommand::Skip { id, operator } => act::skip(target, id, &operator.given()?).await,
        EventCommand::Dismiss { id, operator } => {
            act::dismiss(target, id, &operator.given()?).await
        }
        EventCommand::Replay { id: Some(id), operator, .. } => {
            act::replay_one(target, id, &operator.given()?).await
        }
        EventCommand::Replay { id: None, selection, yes, operator } => {
            act::replay(target, selection, yes, operator).await
        }
        EventCommand::Purge { selection, yes, operator } => {
            act::purge(target, selection, yes, operator).await
        }
        EventCommand::Pause { handler, operator } => {
            act::pause(target, &handler, &operator.given()?).await
        }
        EventCommand::Resume { handler, operator } => {
            act::resume(target, &handler, &operator.given()?).await
        }
        EventCommand::Retire { handler, yes, operator } => {
            act::retire(target, &handler, yes, operator).await
        }
    }
}
