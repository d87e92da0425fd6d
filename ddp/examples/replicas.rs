//! Spreads requests of very different lengths over copies of a model, once by estimated work and once in turn, and
//! compares how long the last one takes.
//!
//! ```text
//! cargo run --release -p annulus-ddp --example replicas
//! ```

use std::time::{Duration, Instant};

use annulus_ddp::{Error, Replicas};

const REPLICAS: usize = 4;
const REQUESTS: u64 = 200;

/// Stands for a model that generates tokens, a quarter of a millisecond each, and remembers its sequences.
#[derive(Default)]
struct Model {
    tokens: u64,
}

impl Model {
    fn generate(&mut self, tokens: u64) -> u64 {
        std::thread::sleep(Duration::from_micros(250) * tokens as u32);
        self.tokens += tokens;
        self.tokens
    }
}

fn main() -> Result<(), Error> {
    // Most requests are short, every eighth is long: in turn, the same replica gets all the long ones.
    let length = |request: u64| if request.is_multiple_of(8) { 64 } else { 1 + request % 5 };
    for by_work in [false, true] {
        let models = (0..REPLICAS).map(|_| Model::default()).collect();
        let replicas = Replicas::new(models, Model::generate)?;
        let begun = Instant::now();
        let mut answers = Vec::new();
        for request in 0..REQUESTS {
            // Equal estimates spread requests by their number.
            let estimate = if by_work { length(request) } else { 0 };
            let answer = replicas.submit(length(request), estimate, None)?;
            answers.push(answer);
        }
        let mut tokens = [0; REPLICAS];
        for answer in answers {
            let replica = answer.replica();
            tokens[replica] = answer.wait()?;
        }
        let how = if by_work { "by work " } else { "in turn " };
        println!(
            "{how}: {:.0?} for {REQUESTS} requests, tokens of each replica {tokens:?}",
            begun.elapsed()
        );
    }
    let replicas = Replicas::new(vec![Model::default(), Model::default()], Model::generate)?;
    for turn in 0..3 {
        let answer = replicas.submit(4, 4, Some(1))?;
        println!(
            "turn {turn} of a conversation: replica {} has {} of its tokens",
            answer.replica(),
            answer.wait()?
        );
    }
    replicas.end_sequence(1);
    Ok(())
}
