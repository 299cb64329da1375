"""The catalogue of the simulated office, and phrases for instructions to it: data that `scenarios` uses.

A phrasing is an imperative with slots: {x} is the object of the step, the others are filled from `FILLERS`. Each task
type has phrasings for training and others for the shift to unseen wording.
"""

from __future__ import annotations

from etude.problems.catalogue import Catalogue, TaskType, Worker

TEXT = ("summarise", "translate", "analyse_sentiment", "write_report", "make_slides", "send_email")

CATALOGUE = Catalogue(
    task_types=(
        TaskType(
            name="search_web",
            description="Search the web: look up, research or collect news, articles and sources online.",
        ),
        TaskType(name="read_document", description="Read a scanned, paper or PDF document and take its text."),
        TaskType(
            name="query_database",
            description="Query the company database or warehouse: fetch sales, orders, invoices and other records.",
        ),
        TaskType(
            name="extract_table",
            description="Extract figures and amounts from text into the rows and columns of a table.",
        ),
        TaskType(name="summarise", description="Summarise a text: its gist, main points, a short version."),
        TaskType(
            name="translate",
            description="Translate a text into another language, such as French, German, Spanish or Japanese.",
        ),
        TaskType(
            name="analyse_sentiment",
            description="Analyse sentiment: the mood, tone and feeling of reviews and messages.",
        ),
        TaskType(
            name="compute_statistics", description="Compute statistics: totals, averages, trends and spread of numbers."
        ),
        TaskType(name="make_chart", description="Make a chart, graph, plot or diagram of data."),
        TaskType(name="write_report", description="Write a report, briefing or memo on findings."),
        TaskType(name="make_slides", description="Make slides: a deck for a presentation."),
        TaskType(name="write_code", description="Write code: a script, function or program."),
        TaskType(name="run_tests", description="Run the test suite against code and list failures."),
        TaskType(name="review_code", description="Review code for bugs, mistakes, style and security."),
        TaskType(name="send_email", description="Send an email: mail or forward something to somebody's inbox."),
        TaskType(name="schedule_meeting", description="Schedule a meeting, call or appointment in the calendar."),
        TaskType(name="transcribe_audio", description="Transcribe a recording: audio or speech into written words."),
    ),
    workers=(
        Worker(
            name="large-llm",
            description="A large general language model: careful reasoning, long documents, code.",
            task_types=(*TEXT, "extract_table", "compute_statistics", "write_code", "review_code", "query_database"),
            usd_per_mtok_in=10,
            usd_per_mtok_out=40,
            latency_ms=8000,
            success_rate=0.94,
            size="large",
        ),
        Worker(
            name="medium-llm",
            description="A balanced language model for everyday writing, reading and simple code.",
            task_types=(*TEXT, "extract_table", "search_web", "write_code", "review_code", "schedule_meeting"),
            usd_per_mtok_in=2,
            usd_per_mtok_out=10,
            latency_ms=4000,
            success_rate=0.90,
            size="medium",
        ),
        Worker(
            name="small-llm",
            description="A small, quick and cheap language model for short texts.",
            task_types=(*TEXT, "make_chart", "compute_statistics", "schedule_meeting"),
            usd_per_mtok_in=0.2,
            usd_per_mtok_out=0.8,
            latency_ms=1200,
            success_rate=0.80,
            size="small",
        ),
        Worker(
            name="code-model",
            description="A language model trained on source code: programs, queries, tests.",
            task_types=("write_code", "run_tests", "review_code", "query_database", "compute_statistics", "make_chart"),
            usd_per_mtok_in=3,
            usd_per_mtok_out=15,
            latency_ms=6000,
            success_rate=0.91,
            size="medium",
        ),
        Worker(
            name="page-reader",
            description="A tool that fetches pages and documents, recognises their print and finds tables in them.",
            task_types=("search_web", "read_document", "extract_table"),
            usd_per_call=0.01,
            latency_ms=2500,
            success_rate=0.92,
        ),
        Worker(
            name="analytics",
            description="A data tool: queries, statistics and charts over tables.",
            task_types=("query_database", "compute_statistics", "make_chart", "extract_table"),
            usd_per_call=0.004,
            latency_ms=1500,
            success_rate=0.93,
        ),
        Worker(
            name="workbench",
            description="A sandbox with office and build tools: mail, calendar, presentations, test runs.",
            task_types=("send_email", "schedule_meeting", "make_slides", "run_tests"),
            usd_per_call=0.002,
            latency_ms=800,
            success_rate=0.95,
        ),
        Worker(
            name="person",
            description="An experienced colleague at a service desk who can do everything, slowly and at a price.",
            usd_per_call=0.2,
            latency_ms=60_000,
            success_rate=0.89,
        ),
        Worker(
            name="speech-model",
            description="A speech model: hears recordings, writes them down and retells them in many languages.",
            task_types=("transcribe_audio", "translate", "summarise"),
            usd_per_call=0.003,
            latency_ms=1800,
            success_rate=0.94,
        ),
    ),
)

NEW_ENTRIES = ("transcribe_audio", "speech-model")
"""Entries that appear with the shift `new_tool`; before it no policy can choose them."""

SEEN: dict[str, tuple[str, ...]] = {
    "search_web": (
        "search the web for {x}",
        "look up {x} online",
        "find out what the internet says about {x}",
        "google {x}",
        "dig up recent articles on {x}",
        "see what has been published on {x}",
        "research {x}",
        "collect sources about {x}",
    ),
    "read_document": (
        "read {x}",
        "open {x} and get the text",
        "go through {x}",
        "load {x}",
        "scan {x}",
        "take the text from {x}",
        "parse {x}",
        "have a look at what {x} says",
    ),
    "query_database": (
        "query the database for {x}",
        "pull {x} from the warehouse",
        "get {x} out of the CRM",
        "fetch {x} from our records",
        "export {x} from the system",
        "run a query for {x}",
        "retrieve {x}",
        "select {x} from the tables we keep",
    ),
    "extract_table": (
        "extract a table from {x}",
        "put the figures of {x} into a table",
        "turn {x} into rows and columns",
        "list every amount in {x} in a spreadsheet",
        "tabulate {x}",
        "pull the numbers out of {x}",
        "make a grid of what {x} contains",
        "collect the figures from {x}",
    ),
    "summarise": (
        "summarise {x}",
        "write a summary of {x}",
        "boil {x} down to five bullet points",
        "give me the gist of {x}",
        "shorten {x} to one paragraph",
        "tell me the main points of {x}",
        "reduce {x} to what matters",
        "write a short version of {x}",
    ),
    "translate": (
        "translate {x} into {lang}",
        "put {x} into {lang}",
        "give me {x} in {lang}",
        "turn {x} into {lang}",
        "produce a {lang} version of {x}",
        "rewrite {x} in {lang}",
        "have {x} in {lang} as well",
        "render {x} in {lang}",
    ),
    "analyse_sentiment": (
        "analyse the sentiment of {x}",
        "tell me how people feel in {x}",
        "judge the tone of {x}",
        "rate the mood of {x}",
        "sort {x} into happy and angry",
        "see whether {x} sounds positive",
        "gauge the feeling in {x}",
        "check {x} for complaints and praise",
    ),
    "compute_statistics": (
        "compute the averages of {x}",
        "run the numbers on {x}",
        "work out the totals of {x}",
        "calculate the trend in {x}",
        "do the statistics on {x}",
        "add up {x}",
        "find mean and spread of {x}",
        "tell me how {x} developed in per cent",
    ),
    "make_chart": (
        "make a chart of {x}",
        "plot {x}",
        "draw a graph of {x}",
        "visualise {x}",
        "show {x} as a bar chart",
        "put {x} into a diagram",
        "turn {x} into a line chart",
        "picture {x} as a curve",
    ),
    "write_report": (
        "write a report on {x}",
        "draw up a report about {x}",
        "put together a write-up of {x}",
        "document {x} in two pages",
        "compose a memo on {x}",
        "prepare a briefing on {x}",
        "write {x} up properly",
        "draft a paper on {x}",
    ),
    "make_slides": (
        "make slides on {x}",
        "build a deck from {x}",
        "put {x} on slides",
        "prepare a presentation of {x}",
        "turn {x} into a slide deck",
        "make three slides out of {x}",
        "get {x} ready for the projector",
        "create a pitch deck with {x}",
    ),
    "write_code": (
        "write a script that {job}",
        "write a function that {job}",
        "code a small tool that {job}",
        "implement something that {job}",
        "program a job that {job}",
        "develop a service that {job}",
        "write Python code that {job}",
        "build me a module that {job}",
    ),
    "run_tests": (
        "run the tests on {x}",
        "run the test suite against {x}",
        "test {x}",
        "make sure {x} passes the tests",
        "check that {x} works",
        "try {x} out against all test cases",
        "execute the unit tests for {x}",
        "verify {x} with the test suite",
    ),
    "review_code": (
        "review {x}",
        "look {x} over for bugs",
        "do a code review of {x}",
        "check {x} for security holes",
        "comment on the style of {x}",
        "inspect {x} for mistakes",
        "audit {x}",
        "give {x} a critical reading",
    ),
    "send_email": (
        "email {x} to {who}",
        "send {x} to {who}",
        "mail {x} to {who}",
        "forward {x} to {who}",
        "write to {who} and attach {x}",
        "let {who} have {x}",
        "drop {who} a line with {x}",
        "get {x} into the inbox of {who}",
    ),
    "schedule_meeting": (
        "schedule a meeting with {who} about {x}",
        "set up a call with {who} on {x}",
        "book half an hour with {who} for {x}",
        "put a meeting with {who} about {x} in the calendar",
        "find a slot with {who} to discuss {x}",
        "invite {who} to talk about {x}",
        "arrange an appointment with {who} on {x}",
        "plan a session with {who} to go over {x}",
    ),
    "transcribe_audio": (
        "transcribe {x}",
        "write down what is said in {x}",
        "turn {x} into written words",
        "type up {x}",
        "make a transcript of {x}",
        "listen to {x} and write it down",
        "convert {x} from speech to text",
        "get the spoken words of {x} on paper",
    ),
}

UNSEEN: dict[str, tuple[str, ...]] = {
    "search_web": ("scour the net for {x}", "hunt for current pieces about {x}", "browse for {x}"),
    "read_document": ("run OCR over {x}", "work through the pages of {x}", "digitise {x}"),
    "query_database": ("grab {x} with SQL", "ask the data store for {x}", "dump {x} from the back end"),
    "extract_table": ("lay {x} out as a table", "structure {x} in columns", "gather all values in {x} in a sheet"),
    "summarise": ("condense {x}", "cut {x} down to the essentials", "sum {x} up in a few lines"),
    "translate": ("convert {x} to {lang}", "make {x} readable for {lang} speakers", "localise {x} for {lang}"),
    "analyse_sentiment": ("measure the emotions in {x}", "label {x} as friendly or hostile", "read the room in {x}"),
    "compute_statistics": ("crunch {x}", "tally {x}", "quantify {x} with mean and median"),
    "make_chart": ("graph {x}", "sketch {x} as a pie chart", "display {x} graphically"),
    "write_report": ("author a report covering {x}", "set {x} out in a white paper", "produce a dossier on {x}"),
    "make_slides": ("put {x} in a PowerPoint", "design a slideshow of {x}", "assemble a keynote around {x}"),
    "write_code": ("hack together a program that {job}", "create an app that {job}", "script something that {job}"),
    "run_tests": ("put {x} through its tests", "exercise {x} with pytest", "confirm that {x} is green in CI"),
    "review_code": ("proof-read {x} as a senior engineer", "critique {x}", "vet {x} for vulnerabilities"),
    "send_email": ("shoot {x} over to {who}", "share {x} with {who} by e-mail", "deliver {x} to {who}"),
    "schedule_meeting": (
        "get {who} together to talk {x} through",
        "block time with {who} for {x}",
        "fix a date with {who} to cover {x}",
    ),
    "transcribe_audio": ("put {x} in writing", "caption {x}", "note every word of {x}"),
}

NOUNS: dict[str, tuple[str, ...]] = {
    "extract_table": ("the table", "the rows"),
    "summarise": ("the summary", "the short version"),
    "translate": ("the translation", "the translated text"),
    "analyse_sentiment": ("the verdict on the mood", "the ratings"),
    "compute_statistics": ("the statistics", "the totals"),
    "make_chart": ("the chart", "the graph"),
    "write_report": ("the report", "the write-up"),
    "make_slides": ("the slides", "the deck"),
    "write_code": ("the code", "the program"),
    "run_tests": ("the test results", "the list of failures"),
    "review_code": ("the review", "the comments"),
    "send_email": ("the mail",),
    "schedule_meeting": ("the appointment",),
    "transcribe_audio": ("the transcript",),
}
"""How a later step refers to an earlier step's output; sources are referred to by their object."""

INLINE: dict[str, tuple[str, ...]] = {
    "extract_table": ("a table of {x}",),
    "summarise": ("a summary of {x}", "the gist of {x}", "a digest of {x}"),
    "translate": ("a {lang} version of {x}", "a {lang} translation of {x}"),
    "analyse_sentiment": ("the sentiment of {x}", "the mood in {x}"),
    "compute_statistics": ("the averages of {x}", "the key figures of {x}"),
    "make_chart": ("a chart of {x}", "a graph of {x}"),
    "write_report": ("a report on {x}", "a briefing on {x}"),
    "make_slides": ("a deck on {x}", "slides about {x}"),
}
"""Phrases for an implicit step, inside the object of the next one: "mail a French summary of it to Ana"."""

OBJECTS: dict[str, tuple[str, ...]] = {
    "search_web": (
        "the latest news on {topic}",
        "what the papers write about {topic}",
        "this week's articles on {topic}",
        "public opinion on {topic}",
    ),
    "read_document": (
        "the scanned {document}",
        "the attached PDF of the {document}",
        "the {document} in the archive",
        "the paper copy of the {document}",
    ),
    "query_database": (
        "last quarter's {records}",
        "all {records} since {month}",
        "the {records} of our {city} office",
        "the {records} by region",
    ),
    "transcribe_audio": ("the recording of {event}", "the voice memo about {topic}", "the audio from {event}"),
}
"""Objects of source steps. An object implies its step: a scan that is summarised must have been read."""

PLAIN = (
    "my notes from {event}",
    "the text below",
    "the draft on {topic}",
    "the answers I pasted here",
    "the paragraph about {topic}",
    "the message I typed in",
)
"""Objects that need no source step: they come with the instruction."""

CODE = ("the function below", "the patch I pasted", "this snippet", "the module in this message")

FILLERS: dict[str, tuple[str, ...]] = {
    "who": ("Ana", "the team", "our lawyer", "Mr Okafor", "the board", "the client in {city}", "Li Wei", "accounting"),
    "lang": ("French", "German", "Spanish", "Japanese", "Portuguese", "Polish"),
    "city": ("Lisbon", "Nairobi", "Osaka", "Toronto", "Leipzig", "Lima"),
    "topic": (
        "battery prices",
        "the merger",
        "remote work",
        "heat pumps",
        "the new tax rules",
        "our competitor",
        "the strike in {city}",
        "drug shortages",
        "the budget",
    ),
    "document": ("lease", "supplier contract", "annual accounts", "patent", "insurance policy", "tender", "minutes"),
    "records": ("sales", "orders", "support tickets", "invoices", "sign-ups", "returns", "customer reviews"),
    "event": ("the kick-off", "Monday's call", "the workshop in {city}", "the interview", "the panel"),
    "month": ("January", "March", "June", "September"),
    "job": (
        "renames photos by date",
        "checks VAT numbers",
        "backs up the shared folder",
        "merges duplicate contacts",
        "converts prices to euros",
        "warns when a server is full",
    ),
}

FOLLOWS: dict[str, tuple[str, ...]] = {
    "search_web": ("extract_table", "summarise", "translate", "analyse_sentiment", "write_report"),
    "read_document": ("extract_table", "summarise", "translate", "write_report", "send_email"),
    "query_database": ("extract_table", "analyse_sentiment", "compute_statistics", "make_chart", "write_report"),
    "extract_table": ("compute_statistics", "make_chart", "write_report", "send_email"),
    "summarise": ("translate", "write_report", "make_slides", "send_email", "schedule_meeting"),
    "translate": ("summarise", "make_slides", "send_email", "schedule_meeting"),
    "analyse_sentiment": ("compute_statistics", "make_chart", "write_report", "send_email"),
    "compute_statistics": ("make_chart", "write_report", "make_slides", "send_email"),
    "make_chart": ("write_report", "make_slides", "send_email"),
    "write_report": ("summarise", "translate", "make_slides", "send_email", "schedule_meeting"),
    "make_slides": ("translate", "send_email", "schedule_meeting"),
    "write_code": ("run_tests", "review_code", "send_email"),
    "run_tests": ("write_report", "send_email", "schedule_meeting"),
    "review_code": ("write_report", "send_email", "schedule_meeting"),
    "send_email": (),
    "schedule_meeting": (),
    "transcribe_audio": ("summarise", "translate", "analyse_sentiment", "send_email", "write_report"),
}
"""The steps that can use a step's output."""

ROOTS = (
    *("search_web", "read_document", "query_database", "write_code") * 3,
    *("summarise", "translate", "analyse_sentiment", "extract_table", "run_tests", "review_code", "schedule_meeting"),
)
"""First steps of plans; repeated entries are sampled more often."""

THEN = {
    "seen": (", then ", ", and then ", "; after that, ", ". Then ", ". Once that is done, ", ". Next, ", " and "),
    "unseen": ("; thereupon ", ". As a second step, ", ", followed by this: ", " — next up: "),
}
PARALLEL = {
    "seen": (". Separately, ", ". Also, ", "; in parallel, ", ". Meanwhile, ", ". At the same time, "),
    "unseen": (". Independently of that, ", ". On another note, ", "; alongside, "),
}
TURNED = {
    "seen": (("before you {b}, {a}", "a"), ("{b}, but {a} first", "b")),
    "unseen": (("do not {b} until you {a}", "a"), ("{b}; {a} beforehand", "b")),
}
"""Reversed clauses: the later step b is named before the earlier step a. One of them has the object, the other "it"."""
OPENINGS = {
    "seen": ("", "", "", "please ", "could you ", "I need you to ", "hi, ", "quick one: ", "today I want you to "),
    "unseen": ("", "kindly ", "would you mind: ", "here is a task: "),
}
CLOSINGS = {
    "seen": ("", "", "", "", " Thanks!", " It is urgent.", " No rush.", " I need it by Friday."),
    "unseen": ("", " Cheers.", " Much obliged."),
}
NEEDLESS = {
    "seen": (" No {noun} needed.", " I do not want a {noun}.", " There is no need for a {noun}."),
    "unseen": (" Spare me the {noun}.", " Leave out any {noun}."),
}
"""Sentences that name a step which is not wanted."""
NEEDLESS_NOUNS = {
    "translate": "translation",
    "make_chart": "chart",
    "summarise": "summary",
    "write_report": "report",
    "send_email": "mail",
    "schedule_meeting": "meeting",
    "extract_table": "table",
}

KEYWORDS = {
    "search_web": r"search|online|google|internet|articles|news|papers write|opinion",
    "read_document": r"scan|pdf|paper copy|archive",
    "query_database": r"quer|database|warehouse|records|last quarter|sales|orders|invoices|tickets|sign-ups|by region",
    "extract_table": r"table|rows|tabulate|spreadsheet|figures (of|from)|numbers out",
    "summarise": r"summar|gist|digest|short version|main points|bullet|shorten",
    "translate": r"translat|french|german|spanish|japanese|portuguese|polish",
    "analyse_sentiment": r"sentiment|mood|tone|feel|angry|complain",
    "compute_statistics": r"average|total|statistic|trend|run the numbers|key figures|per cent",
    "make_chart": r"chart|graph|plot|diagram|visualis",
    "write_report": r"report|briefing|memo on|write-up|paper on",
    "make_slides": r"slide|deck|presentation",
    "write_code": r"script|(function|tool|job|module|code|service|something) that|the program|the code",
    "run_tests": r"tests?\b",
    "review_code": r"review\b|bugs|security|audit|mistakes",
    "send_email": r"e?mail|send|forward|inbox|attach|line with",
    "schedule_meeting": r"meeting|set up a call|appointment|calendar|slot|book half|session",
}
"""Patterns that the rule-based expert searches in a clause, each at the beginning of a word."""
