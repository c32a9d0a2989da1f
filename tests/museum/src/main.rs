//! Makes each known defect in a copy of the checkout, and fails unless its test catches it.
//! `scripts/museum --help` says how to call it.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use ekbatan_museum::suite::{Ended, Suite};
use ekbatan_museum::verdict::{Verdict, first_panic};
use ekbatan_museum::{Defect, copy};

/// A run: the copy, and where cargo builds it.
struct Museum {
    checkout: PathBuf,
    copy: PathBuf,
    target: PathBuf,
}

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Whether every selected defect was caught.
fn run(mut arguments: Vec<String>) -> Result<bool, Box<dyn Error>> {
    let listing = arguments.iter().position(|it| it == "--list").map(|at| arguments.remove(at));
    let checkout = std::env::current_dir()?;
    let selected = |defect: &Defect| {
        let text = format!("{} {} {}", defect.name, defect.suite, defect.test);
        // Its server is heavy, so its name is asked for.
        if let Some(feature) = defect.feature() {
            return arguments.iter().any(|filter| filter.contains(feature));
        }
        arguments.is_empty() || arguments.iter().any(|filter| text.contains(filter.as_str()))
    };
    let defects: Vec<Defect> = Defect::all(&checkout)?.into_iter().filter(selected).collect();
    if defects.is_empty() {
        return Err(format!("no defect matches {arguments:?}").into());
    }
    if listing.is_some() {
        for defect in &defects {
            println!(
                "{}\n    {}\n    {} {}",
                defect.name, defect.breaks, defect.suite, defect.test
            );
        }
        return Ok(true);
    }
    Museum::open(checkout)?.check(&defects)
}

impl Museum {
    fn open(checkout: PathBuf) -> Result<Self, Box<dyn Error>> {
        let folder = std::env::var_os("EKBATAN_MUSEUM")
            .map_or_else(|| checkout.join("target/museum"), PathBuf::from);
        let (copy, target) = (folder.join("copy"), folder.join("target"));
        fs::create_dir_all(&copy)?;
        copy::refresh(&checkout, &copy)?;
        Ok(Self { checkout, copy, target })
    }

    fn check(&self, defects: &[Defect]) -> Result<bool, Box<dyn Error>> {
        let mut by_suite: BTreeMap<&str, Vec<&Defect>> = BTreeMap::new();
        for defect in defects {
            by_suite.entry(&defect.suite).or_default().push(defect);
        }
        let began = Instant::now();
        let mut verdicts = Vec::new();
        for (name, defects) in by_suite {
            let suite = Suite { copy: &self.copy, target: &self.target, name };
            eprintln!("==> {name}: {} defects; first without them", defects.len());
            let tests = tests_without_defects(&suite, &defects)?;
            for (defect, tests) in defects.into_iter().zip(tests) {
                let began = Instant::now();
                let verdict = match tests {
                    Ok(tests) => self.verdict(&suite, defect, &tests)?,
                    Err(verdict) => verdict,
                };
                println!("{}", line(defect, &verdict, began));
                verdicts.push((defect, verdict));
            }
        }
        Ok(conclude(&verdicts, began))
    }

    /// Makes the defect, runs its tests, and undoes it.
    fn verdict(
        &self,
        suite: &Suite<'_>,
        defect: &Defect,
        tests: &[String],
    ) -> Result<Verdict, Box<dyn Error>> {
        for edit in &defect.edits {
            edit.apply(&self.copy)?;
        }
        let verdict = match suite.build()? {
            Ok(()) => match suite.run(tests)? {
                Ended::Passed => Verdict::Survived,
                Ended::Failed(printed) => Verdict::Caught(first_panic(&printed)),
                Ended::TimedOut => Verdict::Hung,
            },
            Err(printed) => {
                eprintln!("{printed}");
                Verdict::DoesNotBuild
            }
        };
        for edit in &defect.edits {
            fs::copy(self.checkout.join(&edit.file), self.copy.join(&edit.file))?;
        }
        Ok(verdict)
    }
}

/// The tests of a defect; or why it cannot be judged: the sources do not have its text, or its
/// tests do not pass before anything is edited.
type Judgeable = Result<Vec<String>, Verdict>;

fn tests_without_defects(
    suite: &Suite<'_>,
    defects: &[&Defect],
) -> Result<Vec<Judgeable>, Box<dyn Error>> {
    if let Err(printed) = suite.build()? {
        return Err(format!("{printed}\nthe suite {} does not build", suite.name).into());
    }
    let all = suite.tests()?;
    let tests_of = |defect: &&Defect| {
        let mistakes = defect.mistakes(suite.copy);
        let tests: Vec<String> =
            all.iter().filter(|path| defect.is_caught_by(path)).cloned().collect();
        match (mistakes.is_empty(), tests.is_empty()) {
            (true, false) => Ok(tests),
            (true, true) => Err(Verdict::DoesNotFit(format!("there is no test {}", defect.test))),
            (false, _) => Err(Verdict::DoesNotFit(mistakes.join("; "))),
        }
    };
    let mut found: Vec<_> = defects.iter().map(tests_of).collect();
    let every: BTreeSet<&String> = found.iter().flatten().flatten().collect();
    if every.is_empty() || suite.run(every)? == Ended::Passed {
        return Ok(found);
    }
    for tests in &mut found {
        let Ok(names) = &*tests else { continue };
        match suite.run(names)? {
            Ended::Passed => {}
            Ended::TimedOut => *tests = Err(Verdict::Hung),
            Ended::Failed(printed) => *tests = Err(Verdict::FailsAnyway(first_panic(&printed))),
        }
    }
    Ok(found)
}

fn line(defect: &Defect, verdict: &Verdict, began: Instant) -> String {
    let seconds = began.elapsed().as_secs();
    format!("{verdict:<14} {:>4} s  {}: {}", seconds, defect.name, verdict.detail())
}

/// Prints what needs work, and whether nothing does.
fn conclude(verdicts: &[(&Defect, Verdict)], began: Instant) -> bool {
    let bad: Vec<_> = verdicts.iter().filter(|(_, verdict)| !verdict.is_good()).collect();
    let (all, minutes) = (verdicts.len(), began.elapsed().as_secs().div_ceil(60));
    println!("==> {} of {all} defects are caught, {minutes} min", all - bad.len());
    for (defect, verdict) in &bad {
        println!("    {verdict}: {}", defect.name);
        println!("        {}", defect.breaks);
        println!("        {} {}", defect.suite, defect.test);
    }
    bad.is_empty()
}
