"""Everyday conversations: updates in many natural wordings, beside similar but different statements.

Some updates change only one of several values of a statement; the others stay true. Rules may be tuned on
every second conversation of a domain, from the first (`TUNED`). Of the others (`BLIND`), only the totals may be
looked at.
"""

from tests.support.free_conversations import FreeConversation as Talk

TRAVEL = (
    Talk(
        "night-train",
        (
            "We take the night train to Vienna on 4 May, coach 21, berths 61 and 62.",
            "The cats stay with Mrs. Lindqvist.",
            "Scratch that about the date: the night train runs on 6 May.",
            "The tram pass for three days costs 17 euros.",
        ),
        ("6 May", "coach 21", "Lindqvist", "17 euros"),
        ("4 May",),
    ),
    Talk(
        "rental-van",
        (
            "The van from Hertz costs 89 euros a day and we pick it up at 08:30.",
            "Full insurance adds 14 euros a day.",
            "Turns out pickup is only possible from 10:00.",
        ),
        ("89 euros", "14 euros", "10:00"),
        ("08:30",),
    ),
    Talk(
        "two-ferries",
        (
            "The ferry to Aegina leaves from gate E8 at 09:05.",
            "The ferry to Poros leaves from gate E9 at 11:40.",
            "Bump the Poros ferry to the 13:20 one, we want to sleep in.",
            "Our host in Poros is called Despina.",
        ),
        ("09:05", "E8", "13:20", "Despina"),
        ("11:40",),
    ),
    Talk(
        "seats",
        (
            "Seats 14A and 14B are ours on the way out.",
            "Seats 22C and 22D are ours on the way back.",
            "The airline moved us on the way back, it is 25E and 25F.",
        ),
        ("14A", "14B", "25E", "25F"),
        ("22C",),
    ),
    Talk(
        "campsite",
        (
            "We stay 5 nights at the campsite in Nida, pitch 118.",
            "Firewood is 6 euros a bundle.",
            "Make that 4 nights, the weather looks awful.",
            "The campsite's reception closes at 21:30.",
        ),
        ("4 nights", "pitch 118", "6 euros", "21:30"),
        ("5 nights",),
    ),
    Talk(
        "visa",
        (
            "My visa appointment is on Tuesday at 14:15 in the consulate.",
            "Leon's visa appointment is on Thursday at 09:45.",
            "The consulate wrote: mine is on Friday.",
        ),
        ("Friday", "Thursday", "09:45"),
        ("Tuesday",),
    ),
)
GARDENS = (
    Talk(
        "tomatoes",
        (
            "Plant 12 tomato seedlings in bed 4, 50 cm apart.",
            "Water them every second day.",
            "Only 9 tomato seedlings made it.",
            "Basil goes between the rows.",
        ),
        ("9 tomato", "bed 4", "50 cm", "Basil"),
        ("12 tomato",),
    ),
    Talk(
        "fertiliser",
        (
            "The roses get 30 g of fertiliser each.",
            "The hydrangeas get 20 g of fertiliser each.",
            "I was told that is far too strong for roses. 15 g for them.",
        ),
        ("15 g", "20 g"),
        ("30 g",),
    ),
    Talk(
        "greenhouse",
        (
            "Keep the greenhouse at 18 degrees at night.",
            "Keep the propagator at 24 degrees.",
            "Let's lower the greenhouse by two, so 16 degrees at night.",
        ),
        ("16 degrees", "24 degrees"),
        ("18 degrees",),
    ),
    Talk(
        "gardener",
        (
            "Mr. Petrov prunes the apple trees in February.",
            "Mr. Petrov also repairs the shed door.",
            "Petrov retired. The apple trees are now pruned by Ms. Okafor.",
        ),
        ("Okafor",),
        ("Petrov prunes",),
    ),
    Talk(
        "delivery",
        (
            "The gravel is delivered on 11 April, 3 tonnes, and costs 240 euros.",
            "The bark mulch is delivered on 13 April.",
            "The gravel people called, they can't come before 19 April.",
        ),
        ("19 April", "3 tonnes", "240 euros", "13 April"),
        ("11 April",),
    ),
    Talk(
        "seeds",
        (
            "Order carrot seeds, variety Nantaise.",
            "Order leek seeds, variety Bleu de Solaise.",
            "No carrots this year after all, skip the carrot seeds.",
            "Remember to clean the cold frame.",
        ),
        ("Bleu de Solaise", "cold frame"),
        ("Nantaise",),
    ),
)
DATABASES = (
    Talk(
        "deployment",
        (
            "Deploy the catalog database to eu-west-1 with 3 replicas and a statement timeout of 30 s.",
            "Snapshots are kept for 14 days.",
            "Actually make it 5 replicas.",
        ),
        ("eu-west-1", "5 replicas", "30 s", "14 days"),
        ("3 replicas",),
    ),
    Talk(
        "pool",
        (
            "The pool of the billing service has 20 connections and an idle timeout of 300 seconds.",
            "The pool of the search service has 35 connections.",
            "We ran out yesterday, billing needs 40 connections.",
        ),
        ("40 connections", "300 seconds", "35 connections"),
        ("20 connections",),
    ),
    Talk(
        "renamed-table",
        (
            "Invoices live in the table inv_archive.",
            "Customers live in the table crm_people.",
            "We renamed inv_archive to invoices_history.",
        ),
        ("invoices_history", "crm_people"),
        ("live in the table inv_archive",),
    ),
    Talk(
        "versions",
        (
            "Production runs PostgreSQL 15.4 on host pg-prod-7.",
            "Staging runs PostgreSQL 16.1.",
            "Production went to 16.2 last night.",
        ),
        ("16.2", "pg-prod-7", "16.1"),
        ("15.4",),
    ),
    Talk(
        "vacuum",
        (
            "The vacuum job starts at 02:15 and the reindex job starts at 03:40.",
            "The vacuum collides with the backup, start it at 01:05.",
            "The reader user is svc_ro.",
        ),
        ("01:05", "03:40", "svc_ro"),
        ("02:15",),
    ),
    Talk(
        "owner",
        (
            "Tobias owns the schema migrations.",
            "Farah owns the query dashboards.",
            "Tobias is on parental leave, Yuki looks after the schema migrations.",
        ),
        ("Yuki", "Farah"),
        ("Tobias owns",),
    ),
)
ADDRESSES = (
    Talk(
        "office",
        (
            "Our office is at 27 Canal Street, third floor, the door code is 5518.",
            "The warehouse is at 3 Mill Lane.",
            "The landlord gave us a fresh door code: 9042.",
        ),
        ("27 Canal Street", "9042", "3 Mill Lane"),
        ("5518",),
    ),
    Talk(
        "moved",
        (
            "Grandma lives at 8 Poplar Road in Leeds.",
            "Her phone number is 0113 496 0122.",
            "Uncle Bert lives at 15 Poplar Road.",
            "We moved Grandma to 41 Sycamore Close.",
        ),
        ("41 Sycamore Close", "0122", "15 Poplar Road"),
        ("8 Poplar Road",),
    ),
    Talk(
        "email",
        (
            "Write to the accountant at k.mayer@steuer-nord.example.",
            "Write to the notary at office@notar-blum.example.",
            "The accountant has changed firms, use k.mayer@ledgerly.example.",
        ),
        ("office@notar-blum.example", "k.mayer@ledgerly.example"),
        ("steuer-nord",),
    ),
    Talk(
        "parcel",
        (
            "Send the parcel to 90 Harbour View, attention Ms. Castellano.",
            "The invoice goes to 90 Harbour View as well.",
            "Oops, the parcel must go to 90 Harbour Rise.",
        ),
        ("90 Harbour Rise",),
        ("parcel to 90 Harbour View",),
    ),
    Talk(
        "locker",
        (
            "My locker at the pool is number 77 with code 3141.",
            "Jo's locker at the pool is number 78 with code 2718.",
            "Somebody broke into mine, I have number 85 now.",
        ),
        ("85", "2718", "78"),
        ("number 77",),
    ),
    Talk(
        "wifi",
        (
            "The guest network is called Heron and its password is blue-otter-19.",
            "The office network is called Stork.",
            "The password of the guest network expired, it's green-lynx-54.",
        ),
        ("Heron", "green-lynx-54", "Stork"),
        ("blue-otter-19",),
    ),
)
TASKS = (
    Talk(
        "chores",
        (
            "Todo: return the library books by Friday.",
            "Todo: book a dentist appointment.",
            "Todo: buy a birthday present for Nils.",
            "The library books are back already, strike that one.",
        ),
        ("dentist", "Nils"),
        ("return the library books",),
    ),
    Talk(
        "report",
        (
            "Please remember to send the quarterly report to Ms. Adeyemi by 15 October.",
            "We still have to renew the domain.",
            "Ms. Adeyemi gives us until 22 October for the report.",
        ),
        ("22 October", "renew the domain"),
        ("15 October",),
    ),
    Talk(
        "assignee",
        (
            "Ravi writes the release notes.",
            "Ravi reviews the security patch.",
            "Hand the release notes to Simone, Ravi is swamped.",
        ),
        ("Simone", "security patch"),
        ("Ravi writes",),
    ),
    Talk(
        "newsletter",
        (
            "We need to translate the newsletter into Polish.",
            "We need to proofread the flyer.",
            "The Polish newsletter is dead, marketing pulled the plug.",
        ),
        ("proofread the flyer",),
        ("translate the newsletter",),
    ),
    Talk(
        "errands",
        (
            "Pick up the keys from Mrs. Novak on Monday at 18:00.",
            "Drop off the bike at the repair shop on Monday.",
            "Mrs. Novak is away that day, so Wednesday for the keys.",
        ),
        ("Wednesday", "bike"),
        ("Novak on Monday",),
    ),
    Talk(
        "review",
        (
            "The design review happens on 8 March with 6 people.",
            "The code review happens on 10 March.",
            "Design review: pushed by a week, 15 March.",
        ),
        ("15 March", "6 people", "10 March"),
        ("8 March",),
    ),
)
BUDGETS = (
    Talk(
        "kitchen",
        (
            "The kitchen may cost 12,500 euros, of which 3,000 euros are for appliances.",
            "The bathroom may cost 8,000 euros.",
            "The bank agreed to more: 14,000 euros for the kitchen.",
        ),
        ("14,000 euros", "8,000 euros"),
        ("12,500",),
    ),
    Talk(
        "subscriptions",
        (
            "The music subscription is 10.99 a month, the newspaper is 24.90 a month.",
            "The cloud storage is 2.99 a month.",
            "They hiked the newspaper to 27.50.",
        ),
        ("10.99", "27.50", "2.99"),
        ("24.90",),
    ),
    Talk(
        "allowance",
        (
            "Emil gets 8 euros of pocket money a week.",
            "Klara gets 11 euros of pocket money a week.",
            "Emil turned ten, he gets 10 euros from now on.",
        ),
        ("10 euros", "11 euros"),
        ("8 euros",),
    ),
    Talk(
        "quote",
        (
            "The painter's quote is $2,150 for two rooms, with delivery in week 34.",
            "The electrician's quote is $980.",
            "I haggled with the painter. We are at $1,900.",
        ),
        ("$1,900", "week 34", "$980"),
        ("$2,150",),
    ),
    Talk(
        "ads",
        (
            "We spend 400 dollars a week on search ads.",
            "We spend 250 dollars a week on podcasts.",
            "Finance halved the search ads, that's 200 dollars a week.",
        ),
        ("200 dollars", "250 dollars"),
        ("400 dollars",),
    ),
    Talk(
        "limit",
        (
            "BUDGET: 60,000 for the whole launch.",
            "SAFETY: nobody signs contracts above 5,000 without Mireille.",
            "BUDGET: 72,000 for the whole launch.",
        ),
        ("72,000", "Mireille", "5,000"),
        ("60,000",),
    ),
)
MEDICINE = (
    Talk(
        "dose",
        (
            "Dad takes 20 mg of lisinopril at 08:00 and 500 mg of metformin at 19:00.",
            "His next check-up is on 3 June.",
            "The doctor halved the lisinopril, 10 mg.",
        ),
        ("10 mg", "500 mg", "19:00", "3 June"),
        ("20 mg",),
    ),
    Talk(
        "allergy",
        (
            "ALLERGY: penicillin.",
            "My daughter takes cetirizine, one tablet a day.",
            "My son takes cetirizine, half a tablet a day.",
            "The pharmacist swapped my daughter's cetirizine for loratadine.",
        ),
        ("penicillin", "loratadine", "half a tablet"),
        ("daughter takes cetirizine",),
    ),
    Talk(
        "physio",
        (
            "Physiotherapy is on Mondays at 16:30 with Ms. Brandl in room 2.",
            "Massage is on Fridays at 12:00.",
            "Ms. Brandl has a new timetable, physio starts at 17:15.",
        ),
        ("17:15", "12:00", "Brandl"),
        ("16:30",),
    ),
    Talk(
        "vaccines",
        (
            "The tetanus booster is due in March 2027.",
            "The rabies booster is due in May 2027.",
            "I had the years mixed up: tetanus is due in March 2029.",
        ),
        ("March 2029", "May 2027"),
        ("March 2027",),
    ),
    Talk(
        "pressure",
        (
            "Call Dr. Weiss if the systolic value exceeds 160.",
            "Call the ambulance if the systolic value exceeds 190.",
            "Dr. Weiss wants to be called at 150 already.",
            "She never eats grapefruit with the tablets.",
        ),
        ("150", "190", "grapefruit"),
        ("exceeds 160",),
    ),
    Talk(
        "clinic",
        (
            "The surgery is at the Elisabeth clinic on 12 September, admission at 07:00.",
            "The blood test is on 2 September.",
            "The clinic rang: surgery not before 26 September.",
        ),
        ("26 September", "Elisabeth", "07:00", "2 September."),
        ("12 September",),
    ),
)
EVENTS = (
    Talk(
        "wedding",
        (
            "The wedding is on 21 June at Gut Birkenhof with 85 guests.",
            "The rehearsal dinner is on 20 June.",
            "Aunt Rosa's family cancelled, we are 79 guests.",
        ),
        ("21 June", "79 guests", "20 June", "Birkenhof"),
        ("85 guests",),
    ),
    Talk(
        "keynote",
        (
            "Dr. Amara Sissoko gives the keynote at 09:30 in hall B.",
            "Pieter van Dam moderates the panel at 14:00 in hall C.",
            "The keynote had to swap rooms, hall A it is.",
        ),
        ("hall A", "09:30", "hall C", "14:00"),
        ("hall B",),
    ),
    Talk(
        "catering",
        (
            "Lunch for the workshop: 40 vegetarian boxes from Green Fork.",
            "Coffee for the workshop comes from Bean Bros.",
            "Green Fork closed down. Lunch comes from Pita Point.",
        ),
        ("Pita Point", "Bean Bros"),
        ("boxes from Green Fork",),
    ),
    Talk(
        "doors",
        (
            "Doors open at 19:00, the support act plays at 19:45, the band at 21:00.",
            "Tickets are 28 euros.",
            "Because of the curfew the band already plays at 20:30.",
        ),
        ("19:00", "20:30", "28 euros"),
        ("21:00",),
    ),
    Talk(
        "chairs",
        (
            "Rent 120 chairs and 15 tables from Festo for the fair.",
            "Rent 2 gazebos from Zeltmax.",
            "The school lends us 50 chairs, so 70 chairs from Festo are enough.",
        ),
        ("70 chairs", "15 tables", "2 gazebos"),
        ("120 chairs",),
    ),
    Talk(
        "race",
        (
            "The 10 km race starts at 10:00 at the town hall.",
            "The half marathon starts at 08:30 at the bridge.",
            "Heat warning! The 10 km race is brought forward to 09:00.",
        ),
        ("09:00", "08:30", "bridge"),
        ("starts at 10:00",),
    ),
)
BUILDS = (
    Talk(
        "jobs",
        (
            "The CI build uses 8 parallel jobs, a 45 minute limit and the cache bucket ci-cache-eu.",
            "The nightly build uses 16 parallel jobs.",
            "We keep running out of memory in CI, bump it down to 4 parallel jobs.",
        ),
        ("4 parallel jobs", "45 minute", "ci-cache-eu", "16 parallel jobs"),
        ("8 parallel jobs",),
    ),
    Talk(
        "compiler",
        (
            "Compile the firmware with gcc 12.3 and the flag -Os.",
            "Compile the simulator with clang 17.0.",
            "The firmware needs gcc 13.2, the old one miscompiles it.",
        ),
        ("13.2", "-Os", "17.0"),
        ("12.3",),
    ),
    Talk(
        "branch",
        (
            "Releases are cut from the branch release/4.x.",
            "Hotfixes are cut from the branch hotfix/4.x.",
            "The release branch got renamed, releases come from stable/4.x.",
        ),
        ("stable/4.x", "hotfix/4.x"),
        ("release/4.x",),
    ),
    Talk(
        "image",
        (
            "The base image is debian:12-slim and the registry is registry.corp.example.",
            "Tests run in the image python:3.12.",
            "Security wants distroless, so the base image becomes distroless/base:v5.",
        ),
        ("distroless/base:v5", "registry.corp.example", "python:3.12"),
        ("debian:12-slim",),
    ),
    Talk(
        "coverage",
        (
            "Fail the build if coverage drops below 85%.",
            "Fail the build if there are more than 10 warnings.",
            "85% was too ambitious, let's say 80%.",
            "The artifacts are kept for 30 days.",
        ),
        ("80%", "10 warnings", "30 days"),
        ("below 85%",),
    ),
    Talk(
        "signing",
        (
            "The signing key is KEY-77A1 and lives in vault prod-signing.",
            "The test key is KEY-10BC.",
            "The signing key leaked. The replacement is KEY-93F4.",
        ),
        ("KEY-93F4", "prod-signing", "KEY-10BC"),
        ("KEY-77A1",),
    ),
)
HOUSEHOLDS = (
    Talk(
        "heating",
        (
            "Set the living room to 21 degrees and the bedroom to 17 degrees.",
            "The heating engineer is Mr. Falk.",
            "It is freezing in the bedroom, 18 degrees there.",
        ),
        ("21 degrees", "18 degrees", "Falk"),
        ("17 degrees",),
    ),
    Talk(
        "bins",
        (
            "The paper bin is collected on Tuesdays.",
            "The glass bin is collected on Thursdays.",
            "Since January the paper bin is collected on Wednesdays.",
        ),
        ("Wednesdays", "Thursdays"),
        ("Tuesdays",),
    ),
    Talk(
        "dog",
        (
            "Bruno gets 250 g of dry food at 07:00 and at 18:00.",
            "Minka gets 60 g of dry food.",
            "The vet says Bruno is too fat: 200 g.",
        ),
        ("200 g", "60 g"),
        ("250 g",),
    ),
    Talk(
        "lease",
        (
            "The rent is 1,140 euros and is due on the 3rd of each month.",
            "The parking space is 65 euros.",
            "The rent goes up to 1,195 euros in July.",
        ),
        ("1,195 euros", "3rd", "65 euros"),
        ("1,140",),
    ),
    Talk(
        "babysitter",
        (
            "Lena babysits on Saturday from 18:00 to 23:00 for 12 euros an hour.",
            "Lena prefers to be paid in cash.",
            "Lena has an exam. Her sister Mia comes on Saturday.",
        ),
        ("Mia", "12 euros"),
        ("Lena babysits",),
    ),
    Talk(
        "paint",
        (
            "The hallway gets RAL 7035, two coats.",
            "The kids' room gets RAL 1016.",
            "We changed our minds about the hallway, it gets RAL 7047.",
        ),
        ("RAL 7047", "RAL 1016", "two coats"),
        ("RAL 7035",),
    ),
)
_DOMAINS = (
    TRAVEL,
    GARDENS,
    DATABASES,
    ADDRESSES,
    TASKS,
    BUDGETS,
    MEDICINE,
    EVENTS,
    BUILDS,
    HOUSEHOLDS,
)
TUNED = tuple(domain[0::2] for domain in _DOMAINS)
BLIND = tuple(domain[1::2] for domain in _DOMAINS)
