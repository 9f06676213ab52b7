//! Command lines. A wrong one is exit status 2 and one line that says what is wrong.

use std::ops::Deref;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Parser;
use clap::error::ErrorKind;
use comm_core::team::MAX_RANKS;

/// Reads the arguments.
///
/// # Errors
/// The status with which the program ends, when what there is to say has been said: the help on stdout, or what is wrong
/// on stderr.
pub fn parse<A: Parser>() -> Result<A, ExitCode> {
    A::try_parse().map_err(|error| {
        if error.kind() == ErrorKind::DisplayHelp {
            print!("{error}");
            return ExitCode::SUCCESS;
        }
        let text = error.to_string();
        let line = text.lines().next().unwrap_or("wrong arguments");
        refuse(line.strip_prefix("error: ").unwrap_or(line))
    })
}

/// Says on stderr what is wrong with the arguments.
pub fn refuse(why: &str) -> ExitCode {
    eprintln!("error: {why} (see --help)");
    ExitCode::from(2)
}

/// The ids of devices, `5,2`: at least one, and none of them twice.
#[derive(Clone)]
pub struct Devices(Vec<u32>);

impl Deref for Devices {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.0
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Devices, String> {
        let mut ids = Vec::new();
        for id in text.split(',') {
            let id = id.trim().parse().map_err(|_| format!("{id:?} is not a device id"))?;
            if ids.contains(&id) {
                return Err(format!("device {id} is there twice"));
            }
            ids.push(id);
        }
        if ids.len() > MAX_RANKS {
            return Err(format!("{} devices, where {MAX_RANKS} are the most", ids.len()));
        }
        Ok(Devices(ids))
    }
}
