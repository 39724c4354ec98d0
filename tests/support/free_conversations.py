"""Short conversations in free words, with what a summary must carry and what is no longer true.

Rules may be tuned on `DEV` and `MORE_DEV`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FreeConversation:
    """What a user said, one message each; phrases that a summary must carry, and phrases that it must not."""

    name: str
    said: tuple[str, ...]
    carried: tuple[str, ...]
    gone: tuple[str, ...] = ()


UPDATES_DEV = (
    FreeConversation(
        "travel-hotel",
        ("The hotel in Lisbon is booked for 12 June, three nights.", "Actually the hotel is now from 14 June."),
        ("14 June",),
        ("12 June",),
    ),
    FreeConversation(
        "travel-budget",
        ("Budget: 2,400 euros in total.", "The budget went up to 2,900 euros."),
        ("2,900",),
        ("2,400",),
    ),
    FreeConversation(
        "travel-ferry",
        ("Our ferry to Naxos leaves at 07:30 from gate E7.", "The ferry got pushed to 09:15."),
        ("09:15",),
        ("07:30",),
    ),
    FreeConversation(
        "travel-guide",
        ("Our guide in Fez is Youssef Alami.", "We have another guide now, it is Karim Idrissi."),
        ("Karim Idrissi",),
        ("Youssef Alami",),
    ),
    FreeConversation(
        "garden-hedge",
        ("The hedge gets cut on 3 September.", "Let's do the hedge on 17 September rather."),
        ("17 September",),
        ("3 September",),
    ),
    FreeConversation(
        "garden-pump",
        ("I set the pond pump to 40 watts.", "The pump is up to 65 watts these days."),
        ("65 watts",),
        ("40 watts",),
    ),
    FreeConversation(
        "database-retention",
        ("We keep the audit logs for 30 days.", "Retention of the audit logs has been lowered to 14 days."),
        ("14 days",),
        ("30 days",),
    ),
    FreeConversation(
        "database-host",
        (
            "The replica lives on db-heron-3.",
            "The replica is no longer on db-heron-3, it was moved to db-stork-9.",
        ),
        ("db-stork-9",),
        ("lives on db-heron-3",),
    ),
    FreeConversation(
        "address-street",
        ("My new address is 14 Harbour Lane, Leith.", "Correction: the address is 41 Harbour Lane, Leith."),
        ("41 Harbour Lane",),
        ("14 Harbour Lane",),
    ),
    FreeConversation(
        "address-phone",
        ("You can reach the landlord at 0151 555 0182.", "The landlord's number changed to 0151 555 0977."),
        ("0151 555 0977",),
        ("0151 555 0182",),
    ),
    FreeConversation(
        "tasks-deadline",
        (
            "The tax return is due on 31 July.",
            "They extended it: the tax return is due on 30 September now.",
        ),
        ("30 September",),
        ("31 July",),
    ),
    FreeConversation(
        "tasks-owner",
        ("Nadia Kurt prepares the slides.", "Turns out the slides are prepared by Emil Holt."),
        ("Emil Holt",),
        ("Nadia Kurt",),
    ),
)
PAIRS_DEV = (
    FreeConversation(
        "travel-passports",
        ("Ana's passport number is X1234567.", "Ben's passport number is now Y7654321."),
        ("X1234567", "Y7654321"),
    ),
    FreeConversation(
        "travel-hotels",
        ("The hotel in Lisbon costs 120 euros a night.", "The hotel in Porto now costs 95 euros a night."),
        ("120 euros", "95 euros"),
    ),
    FreeConversation(
        "garden-beds",
        ("The raised bed gets 12 litres a day.", "The herb bed actually gets 5 litres a day."),
        ("12 litres", "5 litres"),
    ),
    FreeConversation(
        "database-ports",
        ("The staging port is 8081.", "The production port is now 8443."),
        ("8081", "8443"),
    ),
    FreeConversation(
        "database-budget-and-limit",
        ("The memory limit of the worker is 4 GB.", "The disk limit of the worker was raised to 80 GB."),
        ("4 GB", "80 GB"),
    ),
    FreeConversation(
        "address-two",
        (
            "The office is at 8 Mill Road.",
            "The warehouse moved to 22 Canal Street.",
        ),
        ("8 Mill Road", "22 Canal Street"),
    ),
    FreeConversation(
        "tasks-two-deadlines",
        ("The draft is due on Monday.", "The final version is now due on Friday."),
        ("Monday", "Friday"),
    ),
)
CANCELLED_DEV = (
    FreeConversation(
        "travel-museum",
        (
            "Buy four museum tickets for Tuesday.",
            "The train leaves at 10:05.",
            "Forget the museum tickets, we cancelled those.",
        ),
        ("10:05",),
        ("Tuesday",),
    ),
    FreeConversation(
        "garden-shed",
        (
            "Order the cedar shed with the green roof.",
            "The fence is 21 metres long.",
            "The shed is off, the neighbours complained.",
        ),
        ("21 metres",),
        ("green roof",),
    ),
    FreeConversation(
        "tasks-call",
        ("Call the dentist about the invoice of 80 euros.", "Drop the call to the dentist, it is settled."),
        (),
        ("80 euros",),
    ),
    FreeConversation(
        "database-negation",
        ("Never restart the primary during office hours.", "The primary runs on host db-7 now."),
        ("Never restart the primary", "db-7"),
    ),
)
UPDATES_TEST = (
    FreeConversation(
        "wedding-guests",
        ("We expect 84 guests at the wedding.", "The wedding grew, we are at 97 guests now."),
        ("97 guests",),
        ("84 guests",),
    ),
    FreeConversation(
        "wedding-cake",
        ("The cake from Rossi costs 420 euros.", "The cake went down to 380 euros."),
        ("380 euros",),
        ("420 euros",),
    ),
    FreeConversation(
        "wedding-band",
        ("The band starts playing at 19:00.", "The band was postponed to 20:30."),
        ("20:30",),
        ("19:00",),
    ),
    FreeConversation(
        "health-dose",
        ("I take 50 mg of the tablets in the morning.", "My doctor raised the tablets to 75 mg."),
        ("75 mg",),
        ("50 mg",),
    ),
    FreeConversation(
        "health-appointment",
        ("The physio appointment is on 4 May at the clinic.", "Physio got moved to 11 May."),
        ("11 May",),
        ("4 May",),
    ),
    FreeConversation(
        "health-doctor",
        ("Dr. Weiss looks after my knee.", "My knee is looked after by Dr. Amari from now on."),
        ("Amari",),
        ("Weiss",),
    ),
    FreeConversation(
        "school-room",
        ("The chemistry class meets in room B204.", "Chemistry has changed rooms, it is C118."),
        ("C118",),
        ("B204",),
    ),
    FreeConversation(
        "school-exam",
        ("The algebra exam takes place on 9 March.", "Scratch that, the exam takes place on 16 March."),
        ("16 March",),
        ("9 March",),
    ),
    FreeConversation(
        "release-version",
        ("The next release will be 4.2.0.", "We renamed the next release to 5.0.0."),
        ("5.0.0",),
        ("4.2.0",),
    ),
    FreeConversation(
        "release-branch",
        ("Work goes to feature/blue-login.", "We work on feature/green-login instead."),
        ("feature/green-login",),
        ("feature/blue-login",),
    ),
    FreeConversation(
        "money-rent",
        ("The rent for the flat is 1,150 euros.", "As of now the rent is 1,240 euros."),
        ("1,240",),
        ("1,150",),
    ),
    FreeConversation(
        "money-rate",
        ("The bank offered us a rate of 3.4%.", "The rate is not 3.4% any more but 3.9%."),
        ("3.9%",),
        ("a rate of 3.4%",),
    ),
)
PAIRS_TEST = (
    FreeConversation(
        "wedding-lunch-dinner",
        ("Lunch for the guests is at 12:30.", "Dinner for the guests is at 19:45 now."),
        ("12:30", "19:45"),
    ),
    FreeConversation(
        "wedding-cars",
        ("The bride's car holds 4 people.", "The groom's car now holds 6 people."),
        ("4 people", "6 people"),
    ),
    FreeConversation(
        "health-tablets",
        ("I take 20 mg of the red tablets.", "I now take 5 mg of the white tablets."),
        ("20 mg", "5 mg"),
    ),
    FreeConversation(
        "school-classes",
        ("The French class is in room A12.", "The Spanish class has moved to room A19."),
        ("A12", "A19"),
    ),
    FreeConversation(
        "release-services",
        ("The api service runs version 2.1.4.", "The mail service was upgraded to 3.0.1."),
        ("2.1.4", "3.0.1"),
    ),
    FreeConversation(
        "money-accounts",
        ("The savings account ends in 4471.", "The joint account now ends in 9023."),
        ("4471", "9023"),
    ),
    FreeConversation(
        "money-two-budgets",
        ("The budget for food is 300 euros.", "The budget for travel went up to 450 euros."),
        ("300 euros", "450 euros"),
    ),
)
CANCELLED_TEST = (
    FreeConversation(
        "wedding-fireworks",
        (
            "Book the fireworks for 23:00.",
            "The chairs arrive on Thursday.",
            "We cancelled the fireworks because of the drought.",
        ),
        ("Thursday",),
        ("23:00",),
    ),
    FreeConversation(
        "school-trip",
        (
            "Collect 35 euros from everyone for the trip to the zoo.",
            "The trip to the zoo is called off.",
        ),
        (),
        ("35 euros",),
    ),
    FreeConversation(
        "release-migration",
        (
            "Write the migration guide for the plugin authors by Wednesday.",
            "The freeze is on 2 August.",
            "Never mind the migration guide.",
        ),
        ("2 August",),
        ("Wednesday",),
    ),
    FreeConversation(
        "money-negation",
        ("Do not pay invoice 5512 before they answer.", "Invoice 5519 can be paid."),
        ("invoice 5512", "5519"),
    ),
)
MORE_DEV = (
    FreeConversation(
        "parcels",
        ("Send the parcels to 12 Elm Street.", "Please send the parcels to 90 Oak Avenue from now on."),
        ("90 Oak",),
        ("12 Elm",),
    ),
    FreeConversation(
        "mum",
        ("Mum lives at 5 Rose Court.", "Mum has moved, she lives at 31 Abbey Road."),
        ("31 Abbey",),
        ("5 Rose",),
    ),
    FreeConversation(
        "postcode", ("Postcode: EH6 6JH.", "The postcode should be EH7 5AB."), ("EH7 5AB",), ("EH6 6JH",)
    ),
    FreeConversation(
        "oven",
        ("The oven goes to 180 degrees.", "I'd go with 200 degrees for the oven."),
        ("200 degrees",),
        ("180 degrees",),
    ),
    FreeConversation("flour", ("Use 250 g of flour.", "Better take 300 g of flour."), ("300 g",), ("250 g",)),
    FreeConversation(
        "soup",
        ("The soup simmers for 40 minutes.", "It was too long, the soup simmers 25 minutes."),
        ("25 minutes",),
        ("40 minutes",),
    ),
    FreeConversation(
        "cron-job",
        ("The cron job runs at 02:00.", "I rescheduled the cron job, 04:30 is quieter."),
        ("04:30",),
        ("02:00",),
    ),
    FreeConversation(
        "web-server",
        ("The web server has 8 GB of RAM.", "We upgraded the web server, it has 32 GB."),
        ("32 GB",),
        ("8 GB",),
    ),
    FreeConversation(
        "gateway",
        ("Our gateway address is 10.0.0.1.", "The gateway address is 10.0.8.1, I was wrong."),
        ("10.0.8.1",),
        ("10.0.0.1",),
    ),
    FreeConversation(
        "team-meeting",
        ("The team meets on Tuesdays at 10:00.", "We meet at 11:30 these days."),
        ("11:30",),
        ("10:00",),
    ),
    FreeConversation(
        "projector",
        ("Paula brings the projector.", "Paula is ill, so Igor brings the projector."),
        ("Igor",),
        ("Paula brings",),
    ),
    FreeConversation(
        "invoice",
        ("The invoice is due on 3 March.", "The due date of the invoice is 20 March."),
        ("20 March",),
        ("3 March",),
    ),
    FreeConversation("chairs", ("We need 12 chairs.", "Make it 18 chairs."), ("18 chairs",), ("12 chairs",)),
    FreeConversation(
        "seat", ("I'd like a window seat.", "No, an aisle seat is better after all."), ("aisle",), ()
    ),
    FreeConversation("airline", ("We fly with Iberia.", "We fly with TAP instead."), ("TAP",), ("Iberia",)),
    FreeConversation(
        "plumber",
        ("The plumber comes on Monday.", "The plumber can't make Monday, he comes on Thursday."),
        ("Thursday",),
        ("comes on Monday",),
    ),
    FreeConversation(
        "plumber-electrician",
        ("The plumber comes on Monday.", "The electrician comes on Thursday now."),
        ("Monday", "Thursday"),
        (),
    ),
    FreeConversation(
        "rooms", ("Room 4 has 12 seats.", "Room 5 now has 20 seats."), ("12 seats", "20 seats"), ()
    ),
    FreeConversation(
        "servers", ("Server alpha has 8 GB.", "Server beta was upgraded to 16 GB."), ("8 GB", "16 GB"), ()
    ),
    FreeConversation(
        "flights", ("Flight TP123 leaves at 08:10.", "Flight TP456 leaves at 17:40."), ("08:10", "17:40"), ()
    ),
    FreeConversation(
        "arrivals", ("Ana arrives on Friday.", "Ben now arrives on Saturday."), ("Friday", "Saturday"), ()
    ),
    FreeConversation(
        "tickets",
        ("The adult ticket costs 20 euros.", "The child ticket went up to 12 euros."),
        ("20 euros", "12 euros"),
        (),
    ),
    FreeConversation(
        "phones",
        ("My work phone is 555-0101.", "My private phone changed to 555-0202."),
        ("555-0101", "555-0202"),
        (),
    ),
    FreeConversation("meals", ("Breakfast is at 07:30.", "Dinner moved to 19:00."), ("07:30", "19:00"), ()),
    FreeConversation(
        "deposit-rent", ("The deposit is 500 euros.", "The rent was raised to 900 euros."), ("500", "900"), ()
    ),
    FreeConversation(
        "plants",
        ("Water the ferns every 3 days.", "Water the cacti every 20 days instead."),
        ("3 days", "20 days"),
        (),
    ),
    FreeConversation("pizza", ("Order pizza for 12 people.", "Skip the pizza, we cook."), (), ("12 people",)),
    FreeConversation("sauna", ("Book the sauna for 18:00.", "The sauna is no longer needed."), (), ("18:00",)),
    FreeConversation(
        "calls", ("Don't call before 9:00.", "Don't forget to call the bank."), ("9:00", "bank"), ()
    ),
    FreeConversation(
        "cat-sitter",
        ("We need a cat sitter from 3 to 9 May.", "Never mind the cat sitter, Ola stays home."),
        (),
        ("9 May",),
    ),
)
DEV = (*UPDATES_DEV, *PAIRS_DEV, *CANCELLED_DEV)
TEST = (*UPDATES_TEST, *PAIRS_TEST, *CANCELLED_TEST)
