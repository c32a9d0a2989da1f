//! The processes of one contest: started, let go at once, and listened to.
//!
//! What always holds: none of them outlives the contest.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::child::{GO, READY, port_after};
use super::timeline::Section;
use super::{Measure, Mode, Provider};
use crate::Failure;

/// What is to be done by how many.
pub struct Contest {
    arguments: Vec<String>,
    processes: usize,
}

/// A process that contends.
struct Contender {
    child: Child,
    tell: ChildStdin,
    hear: BufReader<ChildStdout>,
}

impl Drop for Contender {
    fn drop(&mut self) {
        // Of one that has ended there is nothing to end; it is waited for all the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Contest {
    pub fn new(
        provider: Provider,
        measure: Measure,
        mode: Mode,
        lasts: Duration,
        address: &str,
    ) -> Self {
        let arguments = [
            "locks-child",
            "--provider",
            provider.name(),
            "--measure",
            measure.name(),
            "--mode",
            mode.name(),
            "--seconds",
            &lasts.as_secs().to_string(),
            "--address",
            address,
        ];
        Self { arguments: arguments.map(str::to_owned).into(), processes: measure.processes() }
    }

    /// Blocks until it is over. The sections come in the order in which the key was had.
    pub fn hold(self) -> Result<Vec<Section>, Failure> {
        let mut contenders = Vec::new();
        for _ in 0..self.processes {
            contenders.push(self.start()?);
        }
        let mut ports = Vec::new();
        for contender in &mut contenders {
            let mut line = String::new();
            contender.hear.read_line(&mut line)?;
            let port = port_after(&line, READY);
            ports.push(port.ok_or("a process of the measurement did not become ready")?);
        }
        // Of two, each is told of the other one; to more of them it does not matter.
        for (contender, other) in contenders.iter_mut().zip(ports.iter().rev()) {
            writeln!(contender.tell, "{GO} {other}")?;
        }
        let mut sections = Vec::new();
        for (process, contender) in (0..).zip(&mut contenders) {
            let mut written = Vec::new();
            contender.hear.read_to_end(&mut written)?;
            if !contender.child.wait()?.success() {
                return Err("a process of the measurement failed".into());
            }
            sections.extend(read(process, &written));
        }
        sections.sort_unstable_by_key(|section| section.acquired);
        Ok(sections)
    }

    fn start(&self) -> Result<Contender, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(tell), Some(hear)) => Ok(Contender { child, tell, hear: BufReader::new(hear) }),
            _ => Err("a process of the measurement cannot be spoken to".into()),
        }
    }
}

/// How a process writes its sections down: each as four numbers of eight bytes.
pub fn write(sections: &[Section]) -> Vec<u8> {
    let times =
        |section: &Section| [section.asked, section.acquired, section.releasing, section.done];
    sections.iter().flat_map(times).flat_map(u64::to_le_bytes).collect()
}

fn read(process: u64, written: &[u8]) -> impl Iterator<Item = Section> {
    let (numbers, _) = written.as_chunks::<8>();
    let (sections, _) = numbers.as_chunks::<4>();
    sections.iter().map(move |times| {
        let [asked, acquired, releasing, done] = times.map(u64::from_le_bytes);
        Section { process, asked, acquired, releasing, done }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let section = Section { process: 3, asked: 1, acquired: 2, releasing: 3, done: u64::MAX };
        let read: Vec<Section> = read(3, &write(&[section, section])).collect();
        assert_eq!(read, [section, section]);
    }
}
