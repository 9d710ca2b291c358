//! `raidus bench`: a load on an array, in one process with it, and on its bare members.

mod beside;
mod load;
mod members;
mod report;
mod serve;
mod session;

use clap::Args;
use raidus_assembly::create::BitmapWish;
use raidus_layout::Geometry;
use raidus_runtime::RunOptions;
use raidus_units::{Level, Sectors};

use crate::error::Failure;
use crate::{output, sizes, wait};
use beside::Beside;
use load::{Length, Pattern, Plan};
use report::{ArrayFacts, Counted, LoadFacts, Measured, Ratio, Report};
use session::{Make, Outcome, Running, Session, pool_bytes, warm_up};

/// Measure what an array does with its members.
///
/// The load runs in the same process as the array, so that nothing but the array and its members is measured; then the same load
/// runs on the bare members, and both are put side by side.
///
/// With --level, an array is made for the benchmark: what the members hold is lost, so members that hold anything are refused
/// (--run overrides that). Without --level, the members are an array already; it is only read.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct BenchArgs {
    /// Members: devices or image files, null, memory, or model:OPTIONS; N*MEMBER stands for N of them.
    #[arg(short, long, required = true, num_args = 1.., value_name = "MEMBER")]
    members: Vec<String>,
    /// Make an array of this level on the members: 0, 1, 4, 5, 6, 10, linear.
    #[arg(short, long)]
    level: Option<String>,
    /// Chunk size in KiB, or with K, M, G; default 512K.
    #[arg(short, long, value_name = "SIZE", requires = "level")]
    chunk: Option<String>,
    /// Where data and parity go, as for `raidus create`.
    #[arg(long, requires = "level")]
    layout: Option<String>,
    /// Give the array a write-intent bitmap (internal) or none; default: none.
    #[arg(short, long, value_name = "WHERE", requires = "level", value_parser = ["internal", "none"])]
    bitmap: Option<String>,
    /// What one bit of the bitmap covers.
    #[arg(long, value_name = "SIZE", requires = "bitmap")]
    bitmap_chunk: Option<String>,
    /// Go ahead although members hold something; it is lost.
    #[arg(short = 'R', long, requires = "level")]
    run: bool,
    /// Order of the requests.
    #[arg(short, long, value_enum, default_value = "random")]
    pattern: Pattern,
    /// Size of a request.
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    block: String,
    /// Requests that each job keeps under way.
    #[arg(short, long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: u16,
    /// Jobs; each belongs to one thread.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: u16,
    /// Threads of the array.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// How many of a hundred requests read; the others write.
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    reads: u8,
    /// Flush after every N writes of a job.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    flush_every: Option<u64>,
    /// Write with FUA: each write is durable when it ends.
    #[arg(long)]
    fua: bool,
    /// How long: a time (5s, 500ms), or a number of requests of each job.
    #[arg(long, value_name = "LENGTH", default_value = "3s", value_parser = length)]
    length: Length,
    /// The same before anything is measured.
    #[arg(long, value_name = "LENGTH", default_value = "500ms", value_parser = length)]
    warmup: Length,
    /// How much of the array requests go to, from its start; default: all.
    #[arg(long, value_name = "SIZE")]
    span: Option<String>,
    /// Where random requests go depends on it alone.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure what clients feel of a sync, and how fast it is with and without them.
    #[arg(long, value_enum, value_name = "SYNC", requires = "level")]
    beside: Option<Beside>,
    /// With --beside: rounds of the load without and with the sync.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
    /// KiB per second and member that a sync does at least; default as ever.
    #[arg(long, value_name = "KIB", requires = "beside")]
    sync_speed_min: Option<u64>,
    /// Put no load on the array: serve it over NBD (ADDRESS:PORT for TCP, or the path of a Unix socket) to load generators outside,
    /// until SIGINT or SIGTERM; then say what was counted.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["beside", "no_bare"])]
    serve: Option<String>,
    /// Leave the bare members out.
    #[arg(long)]
    no_bare: bool,
    /// Sleep in poll(2), for valgrind, which does not expect threads to sleep in io_uring_enter(2).
    #[arg(long, hide = true)]
    sleep_in_poll: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const AFTER: &str = "\
Members that are no devices:
  null              answers at once, and forgets: what is left is what raidus itself takes
  memory            a RAM disk
  model:OPTIONS     takes as long as a device would; OPTIONS, after commas:
                    latency=80us  bandwidth=2GiB/s  flush=1ms  size=1GiB
                    kept=front    forget all but metadata (members larger than the machine's memory)
  All take size=SIZE (default 256M). What is kept is kept in memory, which is taken at the start.

What is counted:
  Member I/Os and bytes, reads that writes needed, bytes copied, messages between threads, system calls,
  superblock and bitmap writes, flush rounds. Work that the kernel hands to io_uring's helper threads
  cannot be counted; how many such threads there are can.

Examples:
  What would these disks do as a raid6? (They must be empty.)
    raidus bench --level=6 --members /dev/sd[b-g] --reads=0 --length=10s

  An array that is there, only read:
    raidus bench --members d0 d1 d2 d3

  What a rebuild costs clients on fast SSDs:
    raidus bench --level=5 --members '5*model:latency=80us,bandwidth=2GiB/s,flush=1ms' --beside=recovery";

fn length(text: &str) -> Result<Length, String> {
    match text.parse::<u64>() {
        Ok(count) => Ok(Length::Count(count)),
        Err(_) => members::time(text).map(Length::Time),
    }
}

/// The command.
pub fn run(args: BenchArgs) -> Result<(), Failure> {
    let mut wanted = Vec::new();
    for text in &args.members {
        wanted.extend(members::parse(text).map_err(|why| Failure::Usage(format!("--members: {why}")))?);
    }
    if args.level.is_none() && (args.reads < 100 || args.fua || args.flush_every.is_some()) {
        let why = "writes need an array made for them: give --level; an array that is there is only read";
        return Err(Failure::Usage(why.to_owned()));
    }
    let make = make(&args)?;
    let names = wanted.iter().map(members::Wanted::describe).collect();
    let members = wanted.iter().map(members::Wanted::make).collect::<Result<Vec<_>, Failure>>()?;
    let speed_min = args.sync_speed_min;
    let session = Session {
        members,
        make,
        threads: args.threads,
        beside: args.beside,
        speed_min,
        sleep_in_poll: args.sleep_in_poll,
    };
    session.prepare()?;
    if let Some(address) = &args.serve {
        return served(&args, &session, address);
    }
    let report = wait::while_doing("measuring".to_owned(), || measure(&args, &session, names));
    if session.make.is_some() {
        members::forget(&session.members)?;
    }
    let report = report?;
    if args.json { output::json(&report) } else { output::text(report::table(&report)) }
}

/// Serves the array instead of measuring it.
fn served(args: &BenchArgs, session: &Session, address: &str) -> Result<(), Failure> {
    let running = session.start(RunOptions::default().pool_bytes)?;
    let counted = serve::run(&running, address);
    running.stop()?;
    if session.make.is_some() {
        members::forget(&session.members)?;
    }
    let counted = counted?;
    if args.json { output::json(&counted) } else { output::text(counted.table()) }
}

fn make(args: &BenchArgs) -> Result<Option<Make>, Failure> {
    let usage = |option: &str, why: &dyn std::fmt::Display| Failure::Usage(format!("{option}: {why}"));
    let Some(level) = &args.level else { return Ok(None) };
    let level: Level = level.parse().map_err(|e| usage("--level", &e))?;
    let size = |option, text: &Option<String>| {
        text.as_deref().map(sizes::parse_size).transpose().map_err(|e| usage(option, &e))
    };
    let layout = args.layout.as_deref().map(|text| raidus_layout::names::parse(level, text));
    let bitmap = match args.bitmap.as_deref() {
        Some("internal") => {
            BitmapWish::Internal { chunk: size("--bitmap-chunk", &args.bitmap_chunk)?.map(Sectors::bytes) }
        }
        _ => BitmapWish::None,
    };
    Ok(Some(Make {
        level,
        layout: layout.transpose().map_err(|e| usage("--layout", &e))?,
        chunk: size("--chunk", &args.chunk)?,
        bitmap,
        run: args.run,
    }))
}

fn plan(args: &BenchArgs, array: Sectors) -> Result<Plan, Failure> {
    let usage = |option: &str, why: &dyn std::fmt::Display| Failure::Usage(format!("{option}: {why}"));
    let block = Sectors::from_bytes_floor(sizes::parse_bytes(&args.block).map_err(|e| usage("--block", &e))?);
    let span = args.span.as_deref().map(sizes::parse_bytes).transpose().map_err(|e| usage("--span", &e))?;
    let span = span.map_or(array, |bytes| Sectors::from_bytes_floor(bytes).min(array));
    if block.is_zero() || block > Sectors::from_kib(64 << 10) {
        return Err(usage("--block", &"512 bytes to 64 MiB are possible"));
    }
    if span.0 / block.0 < u64::from(args.jobs) {
        return Err(usage("--block", &"there is not room for one request of each job"));
    }
    Ok(Plan {
        pattern: args.pattern,
        block,
        depth: usize::from(args.depth),
        reads: args.reads,
        flush_every: args.flush_every,
        fua: args.fua,
        seed: args.seed,
        jobs: usize::from(args.jobs),
        span,
        length: args.length,
    })
}

/// Member I/Os that the array has under way at once for one request.
fn width(geometry: &Geometry, plan: &Plan) -> usize {
    match geometry {
        _ if plan.reads == 100 => 1,
        Geometry::Mirror(mirror) => mirror.copies(),
        Geometry::Parity(parity) => 1 + usize::from(parity.parities()),
        _ => 1,
    }
}

fn measure(args: &BenchArgs, session: &Session, names: Vec<String>) -> Result<Report, Failure> {
    // Known only once the array runs; requests of its clients fit into any pool of this size.
    let sketch = plan(args, Sectors::from_kib(1 << 40))?;
    let pool = pool_bytes(&sketch, usize::from(args.threads));
    let running = session.start(pool)?;
    let load = plan(args, running.handle.size())?;
    let (geometry, data) = (running.geometry.clone(), running.data);
    running.load(&warm_up(&load, args.warmup))?;
    let outcome = running.load(&load)?;
    let beside = args.beside.map(|sync| beside::run(&running, &load, sync, args.rounds)).transpose()?;
    let array = facts(session, &running, names);
    running.stop()?;
    let bare_load = Plan { depth: load.depth * width(&geometry, &load), ..load.clone() };
    let bare = if args.no_bare { None } else { Some(bare(args, session, &bare_load, data)?) };
    refuse_errors(&outcome)?;
    bare.iter().try_for_each(refuse_errors)?;
    Ok(report(array, &load, bare_load.depth, &outcome, bare.as_ref(), beside))
}

fn bare(
    args: &BenchArgs,
    session: &Session,
    load: &Plan,
    data: (raidus_units::Sector, Sectors),
) -> Result<Outcome, Failure> {
    let pool = pool_bytes(load, load.jobs);
    session.bare(&warm_up(load, args.warmup), data, pool)?;
    session.bare(load, data, pool)
}

fn refuse_errors(outcome: &Outcome) -> Result<(), Failure> {
    match outcome.done.error {
        None => Ok(()),
        Some(error) => Err(Failure::Bench(format!("a request failed: {error}"))),
    }
}

fn facts(session: &Session, running: &Running, names: Vec<String>) -> ArrayFacts {
    let bitmap = running.handle.status().is_some_and(|status| status.bitmap.is_some());
    ArrayFacts {
        level: running.geometry.level().to_string(),
        members: names,
        chunk_bytes: running.geometry.chunk().bytes(),
        bytes: running.handle.size().bytes(),
        threads: session.threads,
        bitmap,
        made: session.make.is_some(),
    }
}

fn report(
    array: ArrayFacts,
    load: &Plan,
    bare_depth: usize,
    outcome: &Outcome,
    bare: Option<&Outcome>,
    beside: Option<beside::Report>,
) -> Report {
    let block_bytes = load.block.bytes();
    let result = Measured::of(outcome, block_bytes);
    let bare = bare.map(|bare| Measured::of(bare, block_bytes));
    Report {
        array,
        load: LoadFacts {
            pattern: format!("{:?}", load.pattern).to_lowercase(),
            block_bytes,
            depth: load.depth,
            jobs: load.jobs,
            read_percent: load.reads,
            flush_every: load.flush_every,
            fua: load.fua,
            seed: load.seed,
            span_bytes: load.span.bytes(),
            bare_depth,
        },
        counters: Counted::of(outcome, block_bytes),
        ratio: bare.as_ref().map(|bare| Ratio::of(&result, bare)),
        result,
        bare,
        beside,
        resident_bytes: report::resident_bytes(),
        helpers: report::helpers(),
    }
}
