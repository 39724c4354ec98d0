"""Conversations with an assistant, in words as people type them.

Updates are made in passing, confirmed by the assistant, taken from tool results, partial, or never announced.
Rules may be tuned on every second dialogue, from the first (`TUNED`). Of the others (`BLIND`), only the totals
may be looked at.
"""

from dataclasses import dataclass

_ROLES = {"U": "user", "A": "assistant", "T": "tool"}


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Turns (`U: …`, `A: …`, `T: …`), and phrases that a summary of them must and must not contain."""

    name: str
    turns: str
    current: tuple[str, ...]
    replaced: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    fragments: tuple[str, ...] = ()

    def messages(self) -> list[dict[str, str]]:
        messages: list[dict[str, str]] = []
        for line in self.turns.strip().splitlines():
            head, _, text = line.partition(": ")
            if head in _ROLES:
                messages.append({"role": _ROLES[head], "content": text})
            else:
                messages[-1]["content"] += "\n" + line
        return messages


TRAVEL = (
    Dialogue(
        "flight-rebooked",
        """
U: hi, need help keeping track of the Oslo trip. we fly out friday 12th at 6:40 on SK4411
A: Noted: Friday the 12th, 6:40, SK4411.
U: hotel is the Thon Munch, 3 nights, 148 eur per night
A: Got it. Three nights at the Thon Munch.
U: ugh SAS just texted, they put us on SK4419 now, leaves 9:15
A: Okay, SK4419 at 9:15 on Friday the 12th then.
U: yep. and we have to be back by monday noon no matter what
""",
        ("SK4419", "9:15", "Thon Munch", "148", "monday noon"),
        ("SK4411", "6:40"),
    ),
    Dialogue(
        "airbnb-instead",
        """
U: staying at Hotel Miramar in Split, confirmation 7781203
U: rental car is with Sixt, white Polo, pick up at the airport
A: Thanks, I have the Hotel Miramar (7781203) and the Sixt Polo.
U: changed our minds about the hotel, we got an airbnb on Ulica Zrinska 14 instead
A: Noted, I removed the Hotel Miramar.
U: checkin there is from 4pm, host is Dunja
""",
        ("Zrinska 14", "4pm", "Dunja", "Sixt"),
        ("Miramar", "7781203"),
    ),
    Dialogue(
        "assistant-finds-fare",
        """
U: i think the train to Ghent is 39 euros each way
A: Let me look that up.
T: {"route": "Cologne-Ghent", "fares": [{"class": 2, "eur": 47.9}], "retrieved_ok": true}
A: The fare is actually 47.90 euros each way in second class.
U: ok then 47.90 it is. Sanne is paying for hers herself
U: we want the 8:03 on saturday and the 19:12 back on sunday
""",
        ("47.90", "Sanne", "8:03", "19:12"),
        ("39 euros",),
        (("8:03", "19:12"),),
        ("retrieved_ok",),
    ),
    Dialogue(
        "two-travellers",
        """
U: passport of Mira runs out in november 2027, mine in march 2029
U: Mira has seat 31K, I have seat 31H
A: Both passports and seats noted.
U: Mira wanted a window further up front so she got 12A
A: Mira now has 12A.
U: also shes vegetarian, so VGML for her meal
""",
        ("12A", "31H", "november 2027", "march 2029", "VGML"),
        ("31K",),
        (("12A", "31H"), ("november 2027", "march 2029")),
    ),
)
GARDENS = (
    Dialogue(
        "raised-beds",
        """
U: building two raised beds, the left one is 2.4 m long and the right one 1.8 m
A: Two beds: left 2.4 m, right 1.8 m.
U: soil: 900 litres of compost mix, ordered at Bramble & Co
U: hmm measured again, there's only room for 2.1 m on the left
A: Then the left bed becomes 2.1 m.
U: and the compost place was out of stock so i ordered from Greenacre
""",
        ("2.1 m", "1.8 m", "900 litres", "Greenacre"),
        ("2.4 m", "Bramble"),
        (("2.1 m", "1.8 m"),),
    ),
    Dialogue(
        "watering-timer",
        """
U: drip irrigation runs at 5:30 every morning for 20 minutes
U: the lawn sprinkler runs at 22:00 for 35 minutes
A: Drip at 5:30 for 20 minutes, lawn at 22:00 for 35 minutes.
U: neighbours complained, no sprinkler after 9pm please. put it at 20:15
A: Moved the lawn sprinkler to 20:15.
U: drip 25 minutes while it's this hot
""",
        ("5:30", "25 minutes", "20:15", "35 minutes"),
        ("22:00", "20 minutes"),
        (("25 minutes", "35 minutes"),),
    ),
    Dialogue(
        "tree-order",
        """
U: I ordered a quince, a medlar and two pear trees from the nursery, order number BN-20877
A: Quince, medlar, two pears. Order BN-20877.
U: they come on the 3rd of march
U: nursery rang. medlar's sold out so I took a mulberry
U: delivery slips a week, 10th of march
""",
        ("mulberry", "10th of march", "BN-20877"),
        ("3rd of march",),
    ),
    Dialogue(
        "pond",
        """
U: pond liner should be 5 by 4 metres, thickness 1 mm
A: 5 by 4 metres, 1 mm EPDM.
U: fish: 6 goldfish, no koi
U: turns out we need 6 by 5 since the shelf takes up so much
U: make the goldfish 4, 6 is too many for that volume
A: Four goldfish then, liner 6 by 5 metres.
""",
        ("6 by 5", "1 mm", "no koi"),
        ("5 by 4 metres", "6 goldfish"),
    ),
)
DATABASES = (
    Dialogue(
        "pool-size",
        """
U: For the orders service: Postgres 15, pool size 20, statement timeout 5s.
A: Understood. Postgres 15, pool 20, statement timeout 5s.
U: The reporting service has its own pool, size 8.
U: We upgraded last night so it's Postgres 16.
A: Noted, Postgres 16.
U: pool of 20 was exhausting connections in staging, 12 works for orders
""",
        ("Postgres 16", "12", "5s", "size 8"),
        ("Postgres 15", "pool size 20"),
    ),
    Dialogue(
        "migration-window",
        """
U: the migration window is sunday 02:00 to 04:00 UTC and Farid is on call
A: Window: Sunday 02:00 to 04:00 UTC, on call: Farid.
U: backups go to s3://acme-pg-backups, retention 35 days
U: Farid is sick. Noor covers for him
A: Noor is on call for the migration.
U: ops wants it later, 03:30 to 05:30
""",
        ("Noor", "03:30", "05:30", "s3://acme-pg-backups", "35 days"),
        ("02:00", "04:00"),
    ),
    Dialogue(
        "index-from-explain",
        """
U: assume the events table has about 40 million rows
A: I'll check the statistics.
T: relname | reltuples | relpages
events  | 61250000  | 890112
Hint: consider running VACUUM ANALYZE
A: pg_class reports 61 million rows in events, not 40.
U: right, use 61 million. And never run a plain CREATE INDEX there, always CONCURRENTLY
U: the partition key is tenant_id
""",
        ("61 million", "CONCURRENTLY", "tenant_id"),
        ("40 million rows",),
        (),
        ("consider running VACUUM", "890112"),
    ),
    Dialogue(
        "read-replicas",
        """
U: replica db-r2 is in Dublin, replica db-r3 is in Paris
U: max lag on db-r2 is 10 seconds before we alert, on db-r3 it's 30 seconds
A: Alert thresholds: db-r2 10 seconds, db-r3 30 seconds.
U: db-r3 lives in Milan since the move
A: Updated, db-r3 is in Milan.
U: lag alert 45 seconds for r3, the link to milan is slower
""",
        ("Dublin", "Milan", "10 seconds", "45 seconds"),
        ("Paris", "30 seconds"),
        (("Dublin", "Milan"), ("10 seconds", "45 seconds")),
    ),
)
ADDRESSES = (
    Dialogue(
        "parcel-address",
        """
U: ship the keyboard to 18 Alder Court, Flat 3, Leeds LS6 2QT
A: Shipping to 18 Alder Court, Flat 3, Leeds LS6 2QT.
U: invoice goes to my company, 40 Canal Street, Manchester M1 3HE
U: wait, i gave you the old flat. we moved to 7 Heron Mews, Leeds LS7 4DX
A: Thanks, the parcel goes to 7 Heron Mews, Leeds LS7 4DX.
U: leave it with Mrs. Abara next door if nobody's in
""",
        ("7 Heron Mews", "LS7 4DX", "40 Canal Street", "Abara"),
        ("18 Alder Court", "LS6 2QT"),
        (("7 Heron Mews", "40 Canal Street"),),
    ),
    Dialogue(
        "contact-card",
        """
U: can you keep my contacts? Plumber: Joost, 0612 448 190
U: Electrician: Femke, 0655 201 377
A: Saved both.
U: joost has a new number, 0687 330 052
A: Updated Joost's number.
U: Femke only works mornings
""",
        ("0687 330 052", "0655 201 377", "mornings"),
        ("0612 448 190",),
        (("0687 330 052", "0655 201 377"),),
    ),
    Dialogue(
        "house-number-typo",
        """
U: grandma's address is Lindenstrasse 45, 50674 Köln
A: Lindenstrasse 45, 50674 Köln, saved.
U: sorry 54, not 45
A: Corrected to Lindenstrasse 54.
U: her phone is 0221 39 77 10 and she does not read emails
""",
        ("54", "50674", "0221 39 77 10", "emails"),
        ("Lindenstrasse 45",),
    ),
    Dialogue(
        "office-move",
        """
U: Our office is at 3rd floor, Quayside House. The warehouse is at Unit 9, Tannery Lane.
A: Office: 3rd floor, Quayside House. Warehouse: Unit 9, Tannery Lane.
U: As of May the office is on the 5th floor, same building.
U: Deliveries for the warehouse only before 2 pm.
A: Noted.
U: They gave the warehouse a second unit too, number 10, so it's Units 9 and 10 now.
""",
        ("5th floor", "Quayside House", "Units 9 and 10", "Tannery Lane", "2 pm"),
        ("3rd floor",),
    ),
)
TASKS = (
    Dialogue(
        "weekend-list",
        """
U: todo for the weekend: fix the bike light, return library books, call the insurance
A: Three tasks: bike light, library books, insurance.
U: also pick up Emil's cake at 11
U: done with the library books
A: Great, library books are done.
U: bakery says the cake is ready only at 1, so 13:00
U: forget the insurance, they called me
""",
        ("bike light", "13:00", "cake"),
        ("cake at 11",),
    ),
    Dialogue(
        "report-deadline",
        """
U: The grant report is due on the 28th. Ruth writes section 2, Kofi writes section 4.
A: Due on the 28th; Ruth has section 2, Kofi section 4.
U: max length 12 pages
U: The funder gave us an extension until the 9th of December!
A: Wonderful, the deadline is the 9th of December now.
U: And Kofi swapped with Beatriz, so section 4 is hers.
""",
        ("9th of December", "Ruth", "Beatriz", "12 pages"),
        ("28th", "Kofi writes"),
    ),
    Dialogue(
        "priorities",
        """
U: top priority this week is the login bug, then the export page
A: Login bug first, export page second.
U: Tomasz reviews all PRs
U: no wait, customer escalation: export page first, login bug can wait till next sprint
A: Alright. Export page first.
U: reviews go to Hana while Tomasz is on leave
""",
        ("export page first", "next sprint", "Hana"),
        ("Tomasz reviews", "priority this week is the login bug"),
    ),
    Dialogue(
        "cancelled-tasks",
        """
U: Things to do before the move: cancel the gym contract, sell the sofa, paint the hallway.
U: And someone has to measure the new kitchen.
A: Added to the list.
U: we're taking the sofa with us after all
A: So the sofa is not sold.
U: Painting the hallway: landlord does it himself, nothing for us to do there
U: movers come at 7:30 on the 30th
""",
        ("gym contract", "measure the new kitchen", "7:30", "30th"),
    ),
)
COOKING = (
    Dialogue(
        "dinner-guests",
        """
U: cooking for 6 on saturday, main is lamb shoulder, 2.5 kg
A: Lamb shoulder, 2.5 kg for six.
U: dessert: lemon tart
U: Petra and Alois can't make it so we're 4
A: Four guests, then 1.8 kg of lamb is enough.
U: ok 1.8 kg. also Ines is allergic to walnuts!!
""",
        ("1.8 kg", "lemon tart", "walnuts"),
        ("2.5 kg", "cooking for 6"),
    ),
    Dialogue(
        "bread",
        """
U: sourdough: 500 g flour, 350 g water, 10 g salt, bake at 250 for 40 min
A: 70% hydration, baked at 250 for 40 minutes.
U: too wet last time, I go with 325 g water
U: and 230 degrees is plenty in the new oven
A: 325 g water, 230 degrees.
U: never use the fan setting for it
""",
        ("500 g", "325 g", "10 g", "230", "40 min", "fan"),
        ("350 g",),
    ),
    Dialogue(
        "units",
        """
U: the recipe wants 2 cups of sugar and 1 cup of butter
A: 2 cups sugar, 1 cup butter.
U: I only have scales. 400 g sugar, 225 g butter
A: 400 g of sugar and 225 g of butter.
U: cut the sugar to 300, 400 would be sickly sweet
U: oven 175 degrees, 35 minutes
""",
        ("300", "225 g", "175 degrees", "35 minutes"),
        ("2 cups of sugar", "400 g sugar"),
    ),
    Dialogue(
        "meal-plan",
        """
U: Meal plan: Monday lentil soup, Tuesday pasta, Wednesday fish curry
A: Soup, pasta, curry.
U: swap monday and wednesday, the fish has to be used up first
A: Monday fish curry, Tuesday pasta, Wednesday lentil soup.
U: yes exactly. and risotto on thursday for the four of us
""",
        ("Monday fish curry", "Wednesday lentil soup", "risotto"),
        ("Monday lentil soup", "Wednesday fish curry"),
    ),
)
DEPLOYS = (
    Dialogue(
        "rollout",
        """
U: deploy api v2.14.0 to prod tomorrow 10:00 CET, canary 5% first
A: v2.14.0, tomorrow 10:00 CET, canary at 5%.
T: $ ./release check
Running 412 checks
error: flag --strict is deprecated, use --mode=strict
all green
U: QA found a regression, it's gonna be v2.14.1
A: v2.14.1 will be deployed instead.
U: canary 10% is fine
U: rollback only with my ok. Slack channel is #rel-api
""",
        ("v2.14.1", "10%", "10:00 CET", "my ok", "#rel-api"),
        ("v2.14.0", "5%"),
        (),
        ("flag --strict is deprecated", "Running 412 checks"),
    ),
    Dialogue(
        "regions",
        """
U: We run in eu-central-1 with 6 nodes and in us-east-2 with 4 nodes.
A: eu-central-1: 6 nodes. us-east-2: 4 nodes.
U: EU got busier, it has 9 nodes these days.
A: Understood, nine in eu-central-1.
U: Instance type is c7g.xlarge in both.
U: Switched US to c7g.large, was overkill.
""",
        ("9 nodes", "4 nodes", "c7g.large", "eu-central-1", "us-east-2"),
        ("6 nodes",),
        (("9 nodes", "4 nodes"),),
    ),
    Dialogue(
        "feature-flag",
        """
U: the flag is called checkout_v3 and it's on for 20% of users
A: checkout_v3 at 20%.
U: we went to 50% this morning
U: error budget is 0.1%, if we go over that turn the flag off
A: OK: 50%, kill switch at an error rate of 0.1%.
U: product renamed it, flag's called express_checkout
""",
        ("express_checkout", "50%", "0.1%"),
        ("20%",),
    ),
    Dialogue(
        "log-level",
        """
U: set log level to debug on the worker and keep info on the gateway
A: Done: worker debug, gateway info.
T: worker-7f9c restarted
WARN config key LOG_FMT is unknown, ignoring it
U: disks fill up, worker back to warn please
A: Worker is at warn now.
U: memory limit of the worker is 768Mi, of the gateway 512Mi
U: gateway OOMed, give it 1Gi
""",
        ("warn", "768Mi", "1Gi"),
        ("512Mi", "debug on the worker"),
        (("768Mi", "1Gi"),),
        ("LOG_FMT",),
    ),
)
SCHOOL = (
    Dialogue(
        "exam-schedule",
        """
U: my exams: biology on june 3 in room B12, history on june 7 in room C4
A: Biology June 3 in B12, History June 7 in C4.
U: they moved bio to the gym because of the renovation
U: history is on the 8th, teacher got the date wrong
A: History is on June 8.
U: I need at least 11 points in bio
""",
        ("gym", "8th", "C4", "11 points", "june 3"),
        ("B12", "june 7"),
    ),
    Dialogue(
        "school-trip",
        """
U: class trip to the science museum, 24 kids, bus leaves at 8:15, costs 14 euros per child
A: Museum trip: 24 children, bus at 8:15, 14 euros each.
U: two kids dropped out, 22 now
A: 22 children.
U: Museum gives us a group rate so 11.50 per child
U: Mr. Haas comes along as second adult
""",
        ("22", "8:15", "11.50", "Haas", "science museum"),
        ("24 kids", "14 euros"),
    ),
    Dialogue(
        "thesis",
        """
U: My supervisor is Prof. Adeyemi, second reader Dr. Stahl.
A: Supervisor Prof. Adeyemi, second reader Dr. Stahl.
U: working title: Urban Heat and Street Trees
U: citation style is APA
U: Dr. Stahl is going on sabbatical. Dr. Vance will read it.
A: Dr. Vance is the second reader.
U: department insists on Chicago style, so Chicago
""",
        ("Adeyemi", "Vance", "Chicago", "Urban Heat and Street Trees"),
        ("APA", "second reader Dr. Stahl"),
        (("Adeyemi", "Vance"),),
    ),
    Dialogue(
        "parent-evening",
        """
U: parent evening for Jonah is Tuesday 18:30, for Lotte it's Wednesday 19:00
A: Jonah Tuesday 18:30, Lotte Wednesday 19:00.
U: Lottes teacher can only do 17:45
A: Lotte at 17:45 on Wednesday.
U: bring the signed form for Jonah
U: his is Monday btw, I mixed up the weeks
""",
        ("17:45", "18:30", "signed form", "Monday"),
        ("19:00",),
    ),
)
MEDICAL = (
    Dialogue(
        "dentist",
        """
U: dentist on wednesday at 14:30 with Dr. Okoye
A: Wednesday 14:30, Dr. Okoye.
U: and physio on monday 9:00 with Lena
U: the dentist called, thursday at 3 now
A: Okay, the dentist is on Thursday at 3.
U: don't let me forget the x-rays, they need them
""",
        ("thursday at 3", "9:00", "Lena", "x-rays", "Okoye"),
        ("14:30",),
    ),
    Dialogue(
        "dosage",
        """
U: I take metformin 500 mg twice a day and ramipril 5 mg in the morning
A: Metformin 500 mg twice daily, ramipril 5 mg in the morning.
U: allergic to penicillin, that one is important
U: doctor upped the metformin to 850
A: Metformin is 850 mg now.
U: ramipril stays as it is
U: next blood test is on 14 april
""",
        ("850", "5 mg", "penicillin", "14 april"),
        ("metformin 500 mg",),
    ),
    Dialogue(
        "vet",
        """
U: Biscuit weighs 11.2 kg and gets 90 g of kibble twice a day
U: Pepper weighs 6.4 kg and gets 55 g
A: Biscuit 11.2 kg / 90 g, Pepper 6.4 kg / 55 g.
U: at the vet today, Biscuit is at 12.6 kg, so she's on a diet: 75 g from now on
A: Biscuit: 12.6 kg, 75 g.
U: vaccination for pepper is due in october
""",
        ("12.6 kg", "75 g", "6.4 kg", "55 g", "october"),
        ("11.2 kg", "90 g"),
        (("12.6 kg", "6.4 kg"), ("75 g", "55 g")),
    ),
    Dialogue(
        "mri",
        """
U: MRI at St. Vincent's, 22 may, 7:50, bring the referral
A: MRI on 22 May at 7:50, St. Vincent's.
U: insurance number is K-330-918-2
U: St. Vincent's scanner broke down so it's at the Radiology Centre on Mill Road, same day same time
A: Noted: Radiology Centre on Mill Road, 22 May, 7:50.
U: no coffee 12 hours before
""",
        ("Mill Road", "7:50", "K-330-918-2", "referral", "12 hours"),
        ("MRI at St. Vincent's",),
    ),
)
BUDGETS = (
    Dialogue(
        "kitchen-budget",
        """
U: Kitchen: 9,000 for cabinets, 2,200 for appliances, 1,500 for the worktop
A: Total 12,700.
U: the fridge is included in the appliances
U: we fell in love with a stone worktop, that's 2,350
A: The worktop is 2,350 now, the total 13,550.
U: contractor: Bauhof GmbH, they want 30% up front
U: they settled for 20%
""",
        ("9,000", "2,200", "2,350", "Bauhof", "20%"),
        ("1,500", "30%"),
    ),
    Dialogue(
        "club-fees",
        """
U: Membership fee is 60 a year for adults and 25 for kids.
A: Adults 60, kids 25.
U: At the meeting they voted for 72 for adults.
A: Adults pay 72 from now on.
U: Treasurer is Olga Brandl, account ending in 4410
U: Brandl handed over to Piet de Wit last week
""",
        ("72", "25", "Piet de Wit", "4410"),
        ("60 a year",),
        (("72", "25"),),
    ),
    Dialogue(
        "savings",
        """
U: saving 300 a month for the van, 150 a month for the holiday
A: 300 for the van, 150 for the holiday.
U: Emergency fund: 4 months of rent
U: got a raise so the van gets 420
A: 420 a month for the van.
U: holiday unchanged
""",
        ("420", "150", "4 months"),
        ("300 a month",),
        (("420", "150"),),
    ),
    Dialogue(
        "invoice",
        """
U: invoice no. 2024-117 is 1,840 net, payable within 14 days
A: Invoice 2024-117, 1,840 net, 14 days.
U: invoice no. 2024-118 is 960 net
T: invoice;net;vat
2024-117;1480.00;19
2024-118;960.00;19
printed by ledger-export, do not edit by hand
A: The ledger has 1,480 for 2024-117. Did you swap two digits?
U: oops yes, 1,480
U: and 30 days to pay, we agreed on that by phone
""",
        ("1,480", "960", "30 days"),
        ("1,840", "14 days"),
        (("1,480", "960"),),
        ("do not edit by hand",),
    ),
)
EVENTS = (
    Dialogue(
        "wedding",
        """
U: wedding is on 6 September at Villa Rosa, 80 guests, DJ is Marco
A: 6 September, Villa Rosa, 80 guests, DJ Marco.
U: Florist: Petals & Co, they need the colours by june
U: final headcount came in, 92
A: 92 guests.
U: marco double booked himself 🙄 we've got Sunita doing the music
U: ceremony at 2, dinner at 7
""",
        ("6 September", "Villa Rosa", "92", "Sunita", "Petals", "dinner at 7"),
        ("80 guests", "DJ is Marco"),
    ),
    Dialogue(
        "meetup",
        """
U: Meetup: Thursday 19:00 at Cafe Lund, speakers Anouk (Rust) and Devin (observability)
A: Thursday 19:00, Cafe Lund. Anouk on Rust, Devin on observability.
U: Devin cancelled, we'll have Yusuf on WebAssembly
A: Yusuf on WebAssembly replaces Devin.
U: we expect 45 people
U: 70 signups!! cafe lund is too small, going with the library hall
""",
        ("Yusuf", "Anouk", "library hall", "70", "19:00"),
        ("45 people",),
    ),
    Dialogue(
        "birthday",
        """
U: Birthday party for Nils is on the 14th, starts at 3
U: Invite Ole, Greta, Sami and Fynn
A: Invitations for Ole, Greta, Sami and Fynn.
U: Sami is away that weekend
A: Without Sami then.
U: theme is pirates
U: he changed his mind again, dinosaurs
A: Dinosaurs it is!
U: can we start at half past 2?
A: Sure, the party starts at half past 2.
""",
        ("14th", "dinosaurs", "half past 2", "Greta"),
        ("pirates", "starts at 3"),
    ),
    Dialogue(
        "conference-booth",
        """
U: our booth is C17, 3 by 2 metres, setup on the 4th from 8 am
A: Booth C17, setup on the 4th from 8 am.
U: two monitors, one bar table
U: organiser upgraded us, we're at A03 near the entrance
A: Booth A03.
U: setup has to be finished by 5 pm
U: they only open the doors at 9:30 on setup day
""",
        ("A03", "5 pm", "9:30", "bar table"),
        ("C17", "8 am"),
    ),
)
HARDWARE = (
    Dialogue(
        "pc-build",
        """
U: build: Ryzen 7700, 32 GB RAM, 750 W power supply, case is the Fractal North
A: Ryzen 7700, 32 GB, 750 W, Fractal North.
U: hmm ram is cheap right now, let's do 64
A: 64 GB of RAM.
U: must stay under 1,400 in total
U: with that gpu you suggested i'd rather have 850 W
""",
        ("Ryzen 7700", "64", "1,400", "850 W", "Fractal North"),
        ("32 GB", "750 W"),
    ),
    Dialogue(
        "sensors",
        """
U: The attic sensor has id 0x4f, reports every 60 s. The cellar sensor has id 0x51, reports every 60 s.
A: Attic 0x4f, cellar 0x51.
U: I replaced the attic one, its id is 0x77
A: Attic is 0x77.
U: battery drains, cellar every 300 s please
U: both on channel 11
""",
        ("0x77", "0x51", "300 s", "channel 11"),
        ("0x4f",),
        (("0x77", "0x51"),),
    ),
    Dialogue(
        "router",
        """
U: router is 192.168.1.1, nas is 192.168.1.20, printer is 192.168.1.30
A: Noted all three.
U: nas got 192.168.1.25 after the reset
A: The NAS is at 192.168.1.25.
U: wifi is called Hummel5G, guest wifi is Hummel-Gast
U: firmware must not be updated before monday
""",
        ("192.168.1.25", "192.168.1.30", "Hummel5G", "Hummel-Gast", "monday"),
        ("192.168.1.20",),
        (("192.168.1.25", "192.168.1.30"), ("Hummel5G", "Hummel-Gast")),
    ),
    Dialogue(
        "printer",
        """
U: print the bracket in PLA, 20% infill, 0.2 mm layers
A: PLA, 20% infill, 0.2 mm layers.
U: nozzle temp 205
U: it gets hot in the car so PETG is better
A: PETG; then the nozzle should be at about 240.
U: ok 240. infill 35, it snapped at 20
""",
        ("PETG", "240", "35", "0.2 mm"),
        ("PLA,", "205"),
    ),
)

_DOMAINS = (
    TRAVEL, GARDENS, DATABASES, ADDRESSES, TASKS, COOKING, DEPLOYS, SCHOOL, MEDICAL, BUDGETS, EVENTS, HARDWARE,
)  # fmt: skip
TUNED = tuple(dialogue for domain in _DOMAINS for dialogue in domain[::2])
BLIND = tuple(dialogue for domain in _DOMAINS for dialogue in domain[1::2])
