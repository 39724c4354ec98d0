"""Conversations of other domains than the conformance kit's, with what a summary of them must carry.

Each conversation plants statements with values, updates of them (with cue words and without), pairs of
similar but different statements, labelled statements, tasks, cancelled tasks and quoted text, between small
talk and tool results full of imperative fragments. The domains of `DEV` may be used to tune rules; those of
`TEST` may only be measured.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Turn = dict[str, str]
Values = Callable[[random.Random], str]


def _pick(*values: str) -> Values:
    return lambda rng: rng.choice(values)


def _number(low: int, high: int) -> Values:
    return lambda rng: str(rng.randrange(low, high))


def _code(letters: int, digits: int) -> Values:
    def make(rng: random.Random) -> str:
        head = "".join(rng.choice("ABCDEFGHKLMNPRSTUVWXZ") for _ in range(letters))
        return f"{head}-{rng.randrange(10 ** (digits - 1), 10**digits)}"

    return make


def _time(rng: random.Random) -> str:
    return f"{rng.randrange(7, 22):02d}:{rng.choice((5, 10, 20, 25, 35, 40, 50)):02d}"


def _date(rng: random.Random) -> str:
    return f"{rng.choice(('March', 'April', 'June', 'July', 'August', 'October'))} {rng.randrange(2, 29)}"


def _iso_date(rng: random.Random) -> str:
    return f"2026-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"


def _money(rng: random.Random) -> str:
    return f"{rng.randrange(101, 989)} euros"


_person = _pick(
    "Marta Oliveira", "Jonas Brandt", "Priya Raman", "Luca Ferri", "Aiko Tanaka", "Owen Pryce", "Selma Haddad",
    "Tom Radcliffe", "Ines Moreau", "Viktor Novak", "Rosa Delgado", "Henrik Dahl",
)  # fmt: skip
_weekday = _pick("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")


@dataclass(frozen=True, slots=True)
class Subject:
    """A statement with one value, `{v}`, and the forms of its update; `{o}` is the earlier value."""

    statement: str
    value: Values
    updates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Domain:
    name: str
    goal: str
    subjects: tuple[Subject, ...]
    pairs: tuple[tuple[Subject, Subject], ...]
    labelled: tuple[Subject, ...]
    tasks: tuple[tuple[str, str], ...]
    """Tasks, each with a phrase that only the task contains."""
    cancelled: tuple[tuple[str, str, str], ...]
    """Tasks that are cancelled later: the task, a phrase only of the task, the cancellation."""
    quoted: tuple[str, ...]
    small_talk: tuple[str, ...]
    replies: tuple[str, ...]
    tools: tuple[str, ...]
    fragments: tuple[str, ...]
    """Texts of tool results, which no summary may contain."""


@dataclass(frozen=True, slots=True)
class Conversation:
    domain: str
    messages: tuple[Turn, ...]
    current: tuple[str, ...]
    replaced: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    fragments: tuple[str, ...]


TRAVEL = Domain(
    name="travel",
    goal="Please help me plan our autumn trip to Portugal; we are four people.",
    subjects=(
        Subject(
            "Our flight out leaves on {v}.",
            _date,
            ("Change of plan: we fly out on {v} instead.", "Our flight out leaves on {v}."),
        ),
        Subject(
            "The hotel booking reference is {v}.",
            _code(3, 4),
            (
                "They reissued the hotel booking, the reference is now {v}.",
                "Correction, hotel booking reference {v}.",
            ),
        ),
        Subject(
            "We want to spend no more than {v} on the rental car.",
            _money,
            ("Actually the rental car may cost up to {v}.", "Let's cap the rental car at {v}."),
        ),
        Subject(
            "{v} picks us up at the airport.",
            _person,
            ("{v} will pick us up at the airport instead.", "The airport pickup is done by {v} now, not {o}."),
        ),
        Subject(
            "Breakfast at the guesthouse starts at {v}.",
            _time,
            (
                "I misread it, breakfast at the guesthouse is from {v}.",
                "Breakfast at the guesthouse starts at {v}.",
            ),
        ),
    ),
    pairs=(
        (
            Subject("The train to Porto departs at {v}.", _time),
            Subject("The train to Braga departs at {v}.", _time),
        ),
        (
            Subject("Our room in Lisbon is number {v}.", _number(101, 199)),
            Subject("Our room in Evora is number {v}.", _number(201, 299)),
        ),
    ),
    labelled=(
        Subject("ALLERGY: no dishes with {v} for my daughter.", _pick("hazelnut", "mussels", "celery")),
        Subject("Visa note: {v} still needs her entry stamp.", _person),
    ),
    tasks=(
        ("We still have to book the surf lesson in Ericeira.", "surf lesson"),
        ("Please remember to print the boarding passes.", "boarding passes"),
    ),
    cancelled=(
        (
            "Reserve a table at the fado restaurant for eight o'clock.",
            "eight o'clock",
            "Forget the fado restaurant, we are too tired that evening.",
        ),
    ),
    quoted=("> You must never leave the hire vehicle unlocked in Alfama.",),
    small_talk=(
        "That sounds lovely, thanks for looking into it.",
        "I have been reading about the coast, it looks beautiful.",
        "My sister was there some years ago and liked it.",
        "Good point, let me think about it.",
        "The weather should be fine that time of year.",
        "Okay, what else is there to see?",
    ),
    replies=(
        "Sounds good.",
        "Noted, I will keep that in mind.",
        "Sure, here is what I found so far.",
        "Understood. Shall we look at the next part of the trip?",
    ),
    tools=(
        "| stop | rule |\n| --- | --- |\n"
        "| 1 | never board without a stamp |\n| 2 | always keep the receipt |\nIf a ticket must be refunded",
        "Search results: 14 offers\nDo not refresh this page\n"
        "Only 2 seats left at this price\nWhat it never includes",
    ),
    fragments=(
        "never board without",
        "always keep the receipt",
        "must be refunded",
        "not refresh this page",
        "seats left at",
        "it never includes",
    ),
)

GARDEN = Domain(
    name="garden",
    goal="I want to lay out my vegetable garden for this year and need a planting plan.",
    subjects=(
        Subject(
            "The tomatoes go into bed {v}.",
            _number(3, 40),
            ("Put the tomatoes into bed {v} after all.", "The tomatoes go into bed {v}."),
        ),
        Subject(
            "I sow the carrots on {v}.",
            _date,
            ("I will sow the carrots on {v} rather than then.", "Carrots get sown on {v}."),
        ),
        Subject(
            "The compost comes from {v}.",
            _pick("Hofgut Linden", "Greenfield Farm", "the Kessler nursery", "Bauer Wenzel"),
            ("From now on the compost comes from {v}.", "We switched the compost supplier to {v}."),
        ),
        Subject(
            "The drip line runs for {v} minutes every morning.",
            _number(11, 59),
            (
                "Make the drip line run {v} minutes every morning.",
                "The drip line no longer runs that long, {v} minutes is enough.",
            ),
        ),
        Subject(
            "My neighbour {v} waters the beds while I am away.",
            _person,
            (
                "While I am away {v} waters the beds now.",
                "Turns out {o} cannot do it, so {v} waters the beds while I am away.",
            ),
        ),
    ),
    pairs=(
        (
            Subject("The north fence is {v} metres long.", _number(12, 49)),
            Subject("The south fence is {v} metres long.", _number(50, 99)),
        ),
        (
            Subject("The pH of the front bed is {v}.", _pick("5.9", "6.1", "6.3")),
            Subject("The pH of the back bed is {v}.", _pick("7.2", "7.4", "7.6")),
        ),
    ),
    labelled=(
        Subject("FROST RULE: nothing tender outside before {v}.", _date),
        Subject("Watch out: {v} is poisonous for our dog.", _pick("Foxglove", "Oleander", "Laburnum")),
    ),
    tasks=(
        ("I need to order two rolls of bird netting.", "bird netting"),
        ("Next we have to repair the cold frame.", "cold frame"),
    ),
    cancelled=(
        (
            "Build a trellis from hazel rods by the weekend.",
            "hazel rods",
            "We do not need the trellis any more.",
        ),
    ),
    quoted=('The seed packet says "Always soak for twelve hours before sowing".',),
    small_talk=(
        "It rained again this morning.",
        "I love this time of the year.",
        "The blackbirds are back, they are funny to watch.",
        "Thanks, that helps a lot.",
        "My grandmother did it much the same way.",
        "I am not sure yet about the flowers.",
    ),
    replies=("Good idea.", "Got it.", "That fits the plan well.", "All right, noted. What about the rest?"),
    tools=(
        "Plant table\n| plant | spacing |\n"
        "| leek | must be 15 cm apart |\n| basil | never below 10 degrees |\nPrefer shade if",
        "WEATHER SERVICE\nAvoid watering at noon\nRows to check: 7\nYou should not prune when",
    ),
    fragments=(
        "15 cm apart",
        "below 10 degrees",
        "prefer shade",
        "watering at noon",
        "rows to check",
        "not prune when",
    ),
)

DATABASE = Domain(
    name="database",
    goal="We need to move the orders database to new hardware without losing data.",
    subjects=(
        Subject(
            "The primary runs on host {v}.",
            _pick("db-kestrel-1", "db-osprey-4", "db-harrier-2", "db-merlin-7"),
            ("The primary has been moved, it runs on host {v}.", "The primary runs on host {v}."),
        ),
        Subject(
            "The connection pool size is {v}.",
            _number(21, 199),
            ("I raised the connection pool size to {v}.", "Set the connection pool size to {v}."),
        ),
        Subject(
            "Backups are kept for {v} days.",
            _number(10, 95),
            ("Legal says backups stay {v} days.", "Backups are kept for {v} days from now on."),
        ),
        Subject(
            "The maintenance window opens on {v}.",
            _iso_date,
            (
                "Maintenance window is {v}, sorry for the confusion.",
                "The maintenance window was postponed to {v}.",
            ),
        ),
        Subject(
            "The replication user is called {v}.",
            _pick("repl_ro", "sync_agent", "follower_app", "wal_reader"),
            ("The replication user was renamed to {v}.", "The replication user is {v}, no longer {o}."),
        ),
    ),
    pairs=(
        (
            Subject("The staging port is {v}.", _number(5433, 5499)),
            Subject("The production port is {v}.", _number(6433, 6499)),
        ),
        (
            Subject("The orders table has {v} million rows.", _number(31, 79)),
            Subject("The events table has {v} million rows.", _number(131, 179)),
        ),
    ),
    labelled=(
        Subject("DATA POLICY: customer mails never leave {v}.", _pick("Frankfurt", "Dublin", "Zurich")),
        Subject("Ticket: the change is tracked as {v}.", _code(3, 5)),
    ),
    tasks=(
        ("We still need to drop the unused index on shipments.", "unused index"),
        ("Remember to rotate the vault token afterwards.", "vault token"),
    ),
    cancelled=(
        (
            "Upgrade the logical decoding plugin during the night.",
            "during the night",
            "The decoding plugin upgrade is cancelled.",
        ),
    ),
    quoted=("```sql\n-- you must always run this as superuser\nALTER SYSTEM SET wal_level = logical;\n```",),
    small_talk=(
        "Looks fine to me so far.",
        "Let us go through it step by step.",
        "I had a call with the others about this.",
        "Okay, and how does that behave under load?",
        "Right, that is what I expected.",
        "Thanks, please go on.",
    ),
    replies=(
        "Acknowledged.",
        "I checked it and it looks consistent.",
        "Done.",
        "Okay, continuing with the migration plan.",
    ),
    tools=(
        "LOG: checkpoint complete\nWARNING: there is no transaction in progress\n"
        "HINT: You must be owner of relation\n| 42 | cannot drop |",
        "usage: pg_tool [OPTION]\n  --force   never ask before\n"
        "  --only    restore only the schema\nERROR: permission denied for table audit_rows",
    ),
    fragments=(
        "must be owner",
        "never ask before",
        "restore only the schema",
        "cannot drop",
        "no transaction in progress",
    ),
)

UMZUG = Domain(
    name="umzug",
    goal="Bitte hilf mir, unseren Umzug nach Leipzig zu planen.",
    subjects=(
        Subject(
            "Der Umzugswagen kommt am {v}.",
            _pick("3. Mai", "9. Juni", "14. Juli", "21. August", "27. Mai"),
            ("Der Umzugswagen kommt jetzt doch am {v}.", "Der Umzugswagen kommt am {v}."),
        ),
        Subject(
            "Die Kaution beträgt {v} Euro.",
            _number(1100, 2900),
            ("Korrektur: die Kaution beträgt {v} Euro.", "Die Kaution ist auf {v} Euro gestiegen."),
        ),
        Subject(
            "Den Schlüssel übergibt uns {v}.",
            _person,
            ("Den Schlüssel übergibt uns nun {v} statt {o}.", "{v} übergibt uns den Schlüssel."),
        ),
        Subject(
            "Der neue Internetvertrag hat die Nummer {v}.",
            _code(2, 6),
            ("Der Internetvertrag hat nicht mehr die alte Nummer, sondern {v}.",),
        ),
    ),
    pairs=(
        (
            Subject("Das Schlafzimmer hat {v} Quadratmeter.", _number(12, 19)),
            Subject("Das Wohnzimmer hat {v} Quadratmeter.", _number(22, 39)),
        ),
    ),
    labelled=(Subject("WICHTIG: Im Treppenhaus ist ab {v} Uhr Ruhe.", _pick("19", "20", "21")),),
    tasks=(("Wir müssen noch den Nachsendeauftrag stellen.", "Nachsendeauftrag"),),
    cancelled=(
        (
            "Bestelle ein Halteverbot für die Karl-Heine-Straße.",
            "Karl-Heine",
            "Das Halteverbot brauchen wir nicht mehr.",
        ),
    ),
    quoted=("> Mieter dürfen niemals im Innenhof grillen.",),
    small_talk=(
        "Das klingt gut, danke dir.",
        "Ich freue mich schon sehr darauf.",
        "Mal sehen, was die anderen sagen.",
        "Ja, so machen wir das.",
    ),
    replies=("Alles klar.", "Verstanden, ich merke mir das.", "Gerne."),
    tools=("| Raum | Hinweis |\n| Bad | nie ohne Dichtung |\nNur solange der Vorrat\nSie müssen zuerst",),
    fragments=("ohne Dichtung", "solange der Vorrat", "müssen zuerst"),
)

ADDRESSES = Domain(
    name="addresses",
    goal="Help me clean up the address list for our club's invitations.",
    subjects=(
        Subject(
            "{v} keeps the master list.",
            _person,
            ("{v} took over the master list.", "The master list is kept by {v} now."),
        ),
        Subject(
            "The Hendersons live at {v} Mill Lane.",
            _number(3, 99),
            ("The Hendersons moved, they live at {v} Mill Lane.", "Correct the Hendersons to {v} Mill Lane."),
        ),
        Subject(
            "Aunt Greta's postcode is {v}.",
            _pick("04109", "20357", "50823", "70199", "81541"),
            ("I got Aunt Greta's postcode wrong, it is {v}.", "Aunt Greta's postcode is {v}."),
        ),
        Subject(
            "Invitations must be posted by {v}.",
            _date,
            (
                "The printer is late, so invitations must be posted by {v}.",
                "New posting date for the invitations: {v}.",
            ),
        ),
        Subject(
            "Stamps cost us {v} cents each.",
            _number(61, 129),
            ("Postage went up, stamps cost {v} cents each.", "Stamps cost us {v} cents each."),
        ),
    ),
    pairs=(
        (
            Subject("Anna's house number is {v}.", _number(11, 49)),
            Subject("Bernd's house number is {v}.", _number(51, 99)),
        ),
        (
            Subject("The billing address of the bakery is {v} Quay Street.", _number(100, 149)),
            Subject("The delivery address of the bakery is {v} Quay Street.", _number(150, 199)),
        ),
    ),
    labelled=(
        Subject("PRIVACY: never print the phone number of {v}.", _person),
        Subject("House style: write the country as {v}.", _pick("GERMANY", "Deutschland", "DE")),
    ),
    tasks=(
        ("I still have to ask the Petersens for their new flat number.", "flat number"),
        ("Please also sort the envelopes by region.", "by region"),
    ),
    cancelled=(
        (
            "Send a card to the old choir master in Ghent.",
            "Ghent",
            "No card for the choir master, he has passed away.",
        ),
    ),
    quoted=("> Recipients must always be listed in capital letters.",),
    small_talk=(
        "That is a long list, isn't it.",
        "I found another old notebook.",
        "Thank you for your patience.",
        "We met them last summer, nice people.",
        "Let me check with the others.",
        "Fine, go ahead.",
    ),
    replies=("Noted.", "Okay, I have that.", "Sure.", "Thanks, that makes it clearer."),
    tools=(
        "VALIDATION\n| row | remark |\n"
        "| 12 | must not be empty |\n| 13 | never verified |\nOnly uppercase allowed in",
        "Import help\nDo not close the window\nIf a row should be skipped",
    ),
    fragments=(
        "must not be empty",
        "never verified",
        "uppercase allowed",
        "close the window",
        "should be skipped",
    ),
)

RECIPES = Domain(
    name="recipes",
    goal="I would like to write down my mother's recipes, one after the other.",
    subjects=(
        Subject(
            "The dough rests for {v} minutes.",
            _number(21, 119),
            ("She corrected me: the dough rests {v} minutes.", "The dough rests for {v} minutes."),
        ),
        Subject(
            "Bake it at {v} degrees.",
            _number(151, 239),
            ("Better bake it at {v} degrees.", "Make that {v} degrees for baking."),
        ),
        Subject(
            "The flour comes from {v}.",
            _pick("the Riverside mill", "Moulin Blanc", "Stadtmühle", "Harvest & Sons"),
            ("We changed to flour from {v}.", "The flour comes from {v} these days."),
        ),
        Subject(
            "Serve the soup with {v}.",
            _pick("sourdough", "croutons", "dumplings", "chives"),
            ("Serve the soup with {v} instead.", "On second thought serve the soup with {v}."),
        ),
    ),
    pairs=(
        (
            Subject("The small cake needs {v} grams of sugar.", _number(81, 149)),
            Subject("The large cake needs {v} grams of sugar.", _number(181, 249)),
        ),
        (
            Subject("Whisk the egg whites for {v} minutes.", _number(4, 9)),
            Subject("Whisk the egg yolks for {v} minutes.", _number(11, 19)),
        ),
    ),
    labelled=(
        Subject(
            "NUTS: never use {v} in anything for the school fair.", _pick("pecans", "cashews", "pistachios")
        ),
        Subject("Layout: at most {v} lines for each recipe.", _number(12, 39)),
    ),
    tasks=(("We still have to find the recipe for the plum jam.", "plum jam"),),
    cancelled=(
        (
            "Add a chapter about pickled vegetables at the back.",
            "at the back",
            "Drop the chapter about pickled vegetables.",
        ),
    ),
    quoted=('The label reads "Never heat above forty degrees".',),
    small_talk=(
        "It smells wonderful in here.",
        "She always sings when she cooks.",
        "Nice, that reads well.",
        "We had that on Sundays.",
        "Thanks, go on please.",
    ),
    replies=("Lovely.", "I wrote it down.", "Good, next one?"),
    tools=("OCR RESULT\nMust be sift\n| 3 | stir only clockwise |\nnever let it boi\nShould be eaten",),
    fragments=("must be sift", "only clockwise", "let it boi", "should be eaten"),
)

SYSADMIN = Domain(
    name="sysadmin",
    goal="Set up monitoring for the machines in the branch offices.",
    subjects=(
        Subject(
            "Alerts go to {v}.",
            _pick("ops@larkhill.example", "night@larkhill.example", "duty@larkhill.example"),
            ("Send alerts to {v} from next week.", "Alerts go to {v}."),
        ),
        Subject(
            "The dashboard lives at {v}.",
            _pick(
                "https://grafana.larkhill.example/d/ab1",
                "https://metrics.larkhill.example/d/zz9",
                "https://panels.larkhill.example/d/k4",
            ),
            ("The dashboard has a new home: {v}.", "The dashboard lives at {v}."),
        ),
        Subject(
            "Disk warnings start at {v} percent.",
            _number(61, 95),
            ("Disk warnings should start at {v} percent.", "Hmm, disk warnings at {v} percent, please."),
        ),
        Subject(
            "The agent version is {v}.",
            _pick("2.14.1", "2.15.0", "3.0.2", "3.1.4"),
            ("We upgraded, the agent version is {v}.", "The agent was rolled back to version {v}."),
        ),
        Subject(
            "{v} is on call this weekend.",
            _person,
            ("{v} swapped with {o} and is on call this weekend.", "{v} is on call this weekend after all."),
        ),
    ),
    pairs=(
        (
            Subject("The router in Lyon has the address {v}.", _pick("10.4.0.1", "10.4.0.9")),
            Subject("The router in Turin has the address {v}.", _pick("10.7.0.1", "10.7.0.9")),
        ),
        (
            Subject("Keep the access logs for {v} days.", _number(11, 29)),
            Subject("Keep the audit logs for {v} days.", _number(300, 400)),
        ),
    ),
    labelled=(
        Subject("SECURITY: root logins are only allowed from {v}.", _pick("10.9.9.9", "10.8.8.8")),
        Subject("Owner: questions about the budget go to {v}.", _person),
    ),
    tasks=(
        ("We still need to replace the fan in rack seven.", "rack seven"),
        ("Next step is to write the runbook for power cuts.", "power cuts"),
    ),
    cancelled=(
        (
            "Install the old SNMP bridge on the backup box.",
            "backup box",
            "Skip the SNMP bridge, nobody uses it.",
        ),
    ),
    quoted=("> Administrators must always use two screens.",),
    small_talk=(
        "The office was quiet today.",
        "Okay, makes sense.",
        "I will be back after lunch.",
        "Thanks, that was quick.",
        "Let me know how it goes.",
        "Hm, interesting.",
    ),
    replies=("Done.", "I looked at it.", "Okay.", "The checks run now."),
    tools=(
        "systemd[1]: You must run\nnever restarted: 3 units\n| unit | only if failed |\nAvoid using --now when",
        "Reading package lists...\nThe following must be removed\nDo not power off",
    ),
    fragments=(
        "you must run",
        "never restarted",
        "only if failed",
        "avoid using",
        "must be removed",
        "not power off",
    ),
)

TAREAS = Domain(
    name="tareas",
    goal="Ayúdame a organizar la fiesta del barrio, por favor.",
    subjects=(
        Subject(
            "La fiesta empieza a las {v}.",
            _time,
            ("La fiesta ahora empieza a las {v}.", "La fiesta empieza a las {v}."),
        ),
        Subject(
            "El presupuesto es de {v} euros.",
            _number(310, 990),
            ("Corrección: el presupuesto es de {v} euros.", "El presupuesto subió a {v} euros."),
        ),
        Subject("{v} trae el equipo de sonido.", _person, ("{v} trae el equipo de sonido en lugar de {o}.",)),
    ),
    pairs=(
        (
            Subject("La mesa de los niños tiene {v} sillas.", _number(11, 29)),
            Subject("La mesa de los músicos tiene {v} sillas.", _number(31, 59)),
        ),
    ),
    labelled=(Subject("ATENCIÓN: nunca usar {v} cerca de la carpa.", _pick("bengalas", "velas", "petardos")),),
    tasks=(("Todavía falta pedir el permiso de la calle.", "permiso"),),
    cancelled=(
        ("Alquila un castillo hinchable de dos torres.", "dos torres", "Cancela el castillo hinchable."),
    ),
    quoted=("> Los vecinos deben siempre apagar la música.",),
    small_talk=("Qué bien, muchas gracias.", "Me parece estupendo.", "Ya veremos.", "Sí, seguimos."),
    replies=("Entendido.", "De acuerdo.", "Muy bien."),
    tools=("| fila | aviso |\n| 4 | debe ser único |\nNunca se guard\nSolo lectura en",),
    fragments=("debe ser único", "nunca se guard", "solo lectura en"),
)

DEV = (TRAVEL, GARDEN, DATABASE, UMZUG)
TEST = (ADDRESSES, RECIPES, SYSADMIN, TAREAS)


def build_conversation(domain: Domain, seed: int) -> Conversation:
    """The same conversation for the same domain and seed."""
    rng = random.Random(f"{domain.name} {seed}")
    first: list[str] = []
    later: list[str] = []
    current: list[str] = []
    replaced: list[str] = []
    pairs: list[tuple[str, str]] = []
    used: set[str] = set()

    updated = set(rng.sample(range(len(domain.subjects)), k=max(2, len(domain.subjects) - 1)))
    for number, subject in enumerate(domain.subjects):
        old, new = (_fresh_value(rng, subject.value, used) for _ in range(2))
        first.append(subject.statement.format(v=old))
        if number in updated:
            later.append(rng.choice(subject.updates).format(v=new, o=old))
            current.append(new)
            if not contains(later[-1], old):
                replaced.append(old)
        else:
            current.append(old)
    for pair in domain.pairs:
        values = [_fresh_value(rng, subject.value, used) for subject in pair]
        statements = [subject.statement.format(v=value) for subject, value in zip(pair, values, strict=True)]
        rng.choice((first, later)).extend(statements)
        pairs.append((statements[0], statements[1]))
        current += values
    for subject in domain.labelled:
        value = _fresh_value(rng, subject.value, used)
        first.append(subject.statement.format(v=value))
        current.append(value)
    for task, phrase in domain.tasks:
        rng.choice((first, later)).append(task)
        current.append(phrase)
    for task, phrase, cancellation in domain.cancelled:
        first.append(task)
        later.append(cancellation)
        replaced.append(phrase)
    first += domain.quoted
    rng.shuffle(first)
    rng.shuffle(later)
    return Conversation(
        domain=domain.name,
        messages=tuple(_turns(domain, rng, first + later)),
        current=tuple(current),
        replaced=tuple(replaced),
        pairs=tuple(pairs),
        fragments=domain.fragments,
    )


def _fresh_value(rng: random.Random, make: Values, used: set[str]) -> str:
    """A value that no other statement of the conversation has, so that it can be searched for."""
    value = make(rng)
    while value in used:
        value = make(rng)
    used.add(value)
    return value


def contains(text: str, value: str) -> bool:
    """Return whether a text contains a value as a whole, in any case."""
    return re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", text, re.IGNORECASE) is not None


def _turns(domain: Domain, rng: random.Random, statements: Sequence[str]) -> list[Turn]:
    turns = [
        {"role": "user", "content": domain.goal},
        {"role": "assistant", "content": rng.choice(domain.replies)},
    ]
    for statement in statements:
        for _ in range(2):
            turns.append({"role": "user", "content": rng.choice(domain.small_talk)})
            turns.append({"role": "assistant", "content": rng.choice(domain.replies)})
        if rng.random() < 0.4:
            turns.append({"role": "tool", "content": rng.choice(domain.tools)})
            turns.append({"role": "assistant", "content": rng.choice(domain.replies)})
        talk = f"{rng.choice(domain.small_talk)} " if rng.random() < 0.25 and statement[0] not in ">`" else ""
        turns.append({"role": "user", "content": f"{talk}{statement}"})
        turns.append({"role": "assistant", "content": rng.choice(domain.replies)})
    return turns


@dataclass(slots=True)
class Tally:
    """What summaries carried, of how many."""

    current: int = 0
    carried: int = 0
    replaced: int = 0
    stale: int = 0
    pairs: int = 0
    pairs_kept: int = 0
    fragments: int = 0
    summaries: int = 0
    characters: int = 0
    limit_characters: int = 0

    def add(self, conversation: Conversation, summary: str, limit_characters: int) -> None:
        text = " ".join(summary.split())
        self.summaries += 1
        self.characters += len(summary)
        self.limit_characters += limit_characters
        self.current += len(conversation.current)
        self.carried += sum(contains(text, value) for value in conversation.current)
        self.replaced += len(conversation.replaced)
        self.stale += sum(contains(text, value) for value in conversation.replaced)
        self.pairs += len(conversation.pairs)
        self.pairs_kept += sum(all(one in text for one in pair) for pair in conversation.pairs)
        self.fragments += sum(fragment.lower() in text.lower() for fragment in conversation.fragments)

    def figures(self) -> dict[str, float]:
        return {
            "carried": self.carried / max(self.current, 1),
            "stale": self.stale / max(self.replaced, 1),
            "pairs": self.pairs_kept / max(self.pairs, 1),
            "fragments": self.fragments / max(self.summaries, 1),
            "budget_used": self.characters / max(self.limit_characters, 1),
        }


def transcript_characters(messages: Sequence[Turn]) -> int:
    return sum(len(turn["role"]) + len(turn["content"]) + 4 for turn in messages)
